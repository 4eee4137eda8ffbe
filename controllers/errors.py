"""Every exception of the product.

CachelaneError
+-- InvalidRequest          the caller's fault; names the field (HTTP 400)
|   +-- UnknownModel        (HTTP 404)
|   +-- PromptTooLong       (HTTP 400, code context_length_exceeded)
+-- NotReady                the fleet cannot serve yet (HTTP 503 + Retry-After)
+-- Overloaded              the fleet has more work than it may hold (HTTP 503 + Retry-After)
|   +-- WorkerFull          one worker's gate refused it; another worker may have room
|   +-- RateLimited         the tenant is over a limit of its own (HTTP 429 + Retry-After)
+-- Overtaken               others came before it at its worker; another worker may be sooner
+-- SettingsError           a settings file or variable is wrong; names the path
+-- EventError              a record of the log cannot be decoded or breaks a law
+-- ExecutorError           the executor failed
|   +-- ExecutorDead        it will not answer again; the replica must be replaced
|   +-- RequestAborted      the request was aborted, by the client or by close()
+-- ModelFileError          a model file is missing, damaged or of an unsupported kind
+-- SetupError              this machine lacks something that starting needs (port, disk, network)
|   +-- BrokerError         the embedded broker cannot be fetched or started
+-- BusError                the message bus refused or is set up wrongly

Messages say what was wrong and with which value. Errors of foreign libraries are translated in the
one file that imports the library, raised `from` the original.
"""


class CachelaneError(Exception):
    """Root of the tree."""


class InvalidRequest(CachelaneError):
    """A request breaks a rule; `field` is the path of the fault, as `retention[0].start`."""

    def __init__(self, field: str, message: str, code: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str, str | None]]:
        return type(self), (self.field, self.message, self.code)


class UnknownModel(InvalidRequest):
    """The request names a model that is not served here."""


class PromptTooLong(InvalidRequest):
    """Prompt, or prompt plus requested tokens, exceed what the model can hold."""


class NotReady(CachelaneError):
    """Nothing can serve yet; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(CachelaneError):
    """Too much work is waiting; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkerFull(Overloaded):
    """A worker's gate does not take or keep the request; another worker may."""


class RateLimited(Overloaded):
    """The tenant is over a limit of its own, whatever the fleet could do."""


class Overtaken(CachelaneError):
    """A worker's gate hands the request back: more comes before it than its router knew of."""


class SettingsError(CachelaneError):
    """A setting is unknown or has a wrong value."""


class EventError(CachelaneError):
    """A record cannot be decoded or breaks a law of the log."""


class ExecutorError(CachelaneError):
    """The executor failed to run a request."""


class ExecutorDead(ExecutorError):
    """The executor is gone or hangs; every request on it fails."""


class RequestAborted(ExecutorError):
    """The request was ended before it finished."""


class ModelFileError(CachelaneError):
    """A model file cannot be used."""


class SetupError(CachelaneError):
    """Starting needs something that this machine does not have; the message says what to do."""


class BrokerError(SetupError):
    """The embedded broker cannot be fetched, started or reached."""


class BusError(CachelaneError):
    """The message bus is set up in a way that cannot work."""
