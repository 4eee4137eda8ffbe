"""Code that talks to the outside: settings, Kafka, the local broker, the table feed."""
