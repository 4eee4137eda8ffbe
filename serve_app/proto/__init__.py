"""The gRPC interface: `cachelane.proto` and what is generated from it (`make proto`)."""
