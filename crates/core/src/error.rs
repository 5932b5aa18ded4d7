//! Errors by what the caller should do, with a sentence for the person who reads them.

use std::{fmt, sync::Arc};

/// The caller's possible reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong as it stands (range, alignment, argument); asking again will not help.
    InvalidInput,
    /// There is no such volume, store or block.
    NotFound,
    /// Something of that name is there already.
    Exists,
    /// No space is left; trimming or removing data helps, and so does `gc` of an archive.
    NoSpace,
    /// In use by somebody else; trying later may help.
    Busy,
    /// The medium gave bytes that fail their check; the data named is lost unless a copy exists.
    Corrupt,
    /// An earlier failure stopped all writes; the store must be opened again.
    Stopped,
    /// Made by a newer version, or not offered here.
    Unsupported,
    /// The operating system refused for lack of permission.
    Denied,
    /// The medium or the operating system failed.
    Io,
    /// More memory is needed than was allowed; asking again with more helps, and nothing is
    /// damaged.
    Memory,
}

/// An error: its [`Kind`], one sentence with its context, and what caused it.
///
/// Cloning is cheap, so that the first failure can be given to every later caller.
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    message: Arc<str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Result with the project's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into().into(), source: None }
    }

    /// The same error caused by `source`.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.source = Some(Arc::new(source));
        self
    }

    /// The kind of the error: how the caller can react.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The same error with `context` before its sentence.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.message = format!("{context}: {}", self.message).into();
        self
    }

    /// An operating-system error met while doing `what`, with the kind that its code implies.
    pub fn from_io(what: impl fmt::Display, error: std::io::Error) -> Error {
        use std::io::ErrorKind as E;
        let kind = match error.kind() {
            E::NotFound => Kind::NotFound,
            E::PermissionDenied => Kind::Denied,
            E::AlreadyExists => Kind::Exists,
            E::StorageFull | E::QuotaExceeded | E::FileTooLarge => Kind::NoSpace,
            E::ResourceBusy | E::WouldBlock => Kind::Busy,
            E::InvalidInput => Kind::InvalidInput,
            E::Unsupported => Kind::Unsupported,
            _ => Kind::Io,
        };
        Error::new(kind, format!("{what}: {error}")).caused_by(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| &**e as &(dyn std::error::Error + 'static))
    }
}
