//! Where a store is, and sessions on it.

use std::{
    convert::Infallible,
    fmt,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Once},
    time::Duration,
};

use onefold_backend::{
    EmbeddedStore, RadosObjects,
    peer::own_uid,
    rados::{Connection, Location, TIMEOUT},
};
use onefold_cluster::{KeySource, Session, Settings};
use onefold_core::{Error, Kind, hex_digits, object::ObjectStore};

use super::{control::Client, keeper::Keeper, keys, operator};

/// Where a store is.
#[derive(Clone, Debug)]
pub enum Url {
    /// In a folder of this machine.
    Folder(PathBuf),
    /// In two pools of a Ceph cluster.
    Rados(String, Location),
}

impl FromStr for Url {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Url, Infallible> {
        Ok(match Location::parse(text) {
            Some(location) => Url::Rados(text.to_owned(), location),
            None => Url::Folder(text.into()),
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Url::Folder(path) => path.display().fmt(f),
            Url::Rados(text, _) => f.write_str(text),
        }
    }
}

impl Url {
    /// The server that has a folder, if one takes commands; nothing for a store on Ceph, where everybody may
    /// come at any time, and which [`gateway`] looks for.
    ///
    /// # Errors
    /// `Denied` when what listens can't be trusted; those of looking at the folder.
    pub fn server(&self) -> Result<Option<Client>, Error> {
        let Url::Folder(path) = self else { return Ok(None) };
        let (name, owner) = control_name(path)?;
        match Client::connect_to(&name, owner, path) {
            Ok(client) => Ok(Some(client)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The name of the control socket of a folder's server, by which folder it is; and the folder's owner.
///
/// # Errors
/// Those of looking at it.
pub fn control_name(folder: &Path) -> Result<(String, u32), Error> {
    let metadata = std::fs::metadata(folder)
        .map_err(|e| Error::from_io(format_args!("can't look at {}", folder.display()), e))?;
    let name = format!("{}{:016x}{:016x}", hex_digits(FOLDER), metadata.dev(), metadata.ino());
    Ok((name, metadata.uid()))
}

/// The name of the control socket of a server of a store on Ceph, by which store it is: each host has one at most.
#[must_use]
pub fn gateway_control_name(session: &Session) -> String {
    format!("{}{}", hex_digits(GATEWAY), hex_digits(session.format().id))
}

/// The server on this host that takes commands for a store on Ceph, if there is one. Others, on other hosts, may
/// be at work, too.
///
/// # Errors
/// `Denied` when what listens can't be trusted.
pub fn gateway(url: &Url, session: &Session) -> Result<Option<Client>, Error> {
    let Url::Rados(text, _) = url else { return Ok(None) };
    match Client::connect_to(&gateway_control_name(session), own_uid(), Path::new(text)) {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// An object store that sessions can be opened on. Sessions of a folder are dropped before it.
pub enum Backing {
    /// With the claim on the folder, unless it is only looked at; given up last.
    Folder { path: PathBuf, store: EmbeddedStore, _keeper: Option<Keeper> },
    /// With its URL.
    Rados(String, Location, Duration),
}

/// Stands for a folder in its claim: only a process that has the folder open knows which store is
/// in it.
const FOLDER: [u8; 16] = *b"cluster folder\0\0";

/// Stands for the server of a store on Ceph, before the number of the store.
const GATEWAY: [u8; 16] = *b"cluster gateway\0";

impl Backing {
    pub fn open(url: &Url, timeout: Duration) -> Result<Backing, Error> {
        Ok(match url {
            Url::Folder(path) => {
                let mut keeper = None;
                let mut claim = || {
                    Ok(keeper
                        .insert(Keeper::of_folder(path, FOLDER, &[EmbeddedStore::TABLES])?)
                        .stands())
                };
                let store = EmbeddedStore::open_while(path, operator::word(), &mut claim)?;
                EmbeddedStore::exposed(path).iter().for_each(|sentence| operator::warn(sentence));
                Backing::Folder { path: path.clone(), store, _keeper: keeper }
            }
            Url::Rados(text, location) => Backing::Rados(text.clone(), location.clone(), timeout),
        })
    }

    /// The same for looking: nothing of it changes.
    pub fn look(url: &Url) -> Result<Backing, Error> {
        match url {
            Url::Folder(path) => {
                let store = EmbeddedStore::look(path)?;
                EmbeddedStore::exposed(path).iter().for_each(|sentence| operator::warn(sentence));
                Ok(Backing::Folder { path: path.clone(), store, _keeper: None })
            }
            Url::Rados(..) => Backing::open(url, TIMEOUT),
        }
    }

    /// Who is asked for the key of the store.
    fn keys(&self) -> KeySource {
        keys::of_cluster_store(match self {
            Backing::Folder { path, .. } => path,
            Backing::Rados(text, ..) => Path::new(text),
        })
    }

    /// Why a folder takes no more writes, if so.
    #[must_use]
    pub fn stopped(&self) -> Option<Error> {
        match self {
            Backing::Folder { store, .. } => store.stopped(),
            Backing::Rados(..) => None,
        }
    }

    /// Another session, which can be fenced without the others. Who is asked for the key of an
    /// encrypted store is the process's own.
    pub fn session(&self, settings: Settings) -> Result<Session, Error> {
        let keys = self.keys();
        Session::open(self.objects()?, Settings { keys, ..settings })
    }

    /// A session that only reads, for who has no right to more.
    pub fn reading_session(&self, settings: Settings) -> Result<Session, Error> {
        let keys = self.keys();
        Session::look(self.objects()?, Settings { keys, ..settings })
    }

    /// The objects, as they are stored: those of an encrypted store are sealed.
    pub fn objects(&self) -> Result<Arc<dyn ObjectStore>, Error> {
        Ok(match self {
            Backing::Folder { store, .. } => Arc::new(store.session()),
            Backing::Rados(_, location, timeout) => {
                let connection = Connection::open(location.configuration.as_deref(), *timeout)?;
                warn_of_untried(&connection);
                let (metadata, chunks) = connection.find(location)?;
                Arc::new(RadosObjects::new(connection, &metadata, &chunks)?)
            }
        })
    }
}

/// Tells once whoever works with a cluster whose release was not tried.
pub fn warn_of_untried(connection: &Connection) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| connection.untried().iter().for_each(|sentence| operator::warn(sentence)));
}

/// A store with a session. The session goes before the store.
pub struct Opened {
    pub session: Arc<Session>,
    _backing: Backing,
}

impl Opened {
    pub fn open(url: &Url, settings: Settings) -> Result<Opened, Error> {
        Opened::with(url, settings, TIMEOUT)
    }

    /// Opens a store that is only looked at.
    pub fn look(url: &Url) -> Result<Opened, Error> {
        let backing = Backing::look(url)?;
        let session = backing
            .objects()
            .and_then(|store| Session::look(store, key_settings(url)))
            .map_err(|e| e.context(url))?;
        Ok(Opened { session: Arc::new(session), _backing: backing })
    }

    pub fn with(url: &Url, settings: Settings, timeout: Duration) -> Result<Opened, Error> {
        let backing = Backing::open(url, timeout)?;
        let session = backing.session(settings).map_err(|e| e.context(url))?;
        Ok(Opened { session: Arc::new(session), _backing: backing })
    }
}

/// The usual settings, with the process's own source of keys.
#[must_use]
pub fn key_settings(url: &Url) -> Settings {
    let keys = keys::of_cluster_store(Path::new(&url.to_string()));
    Settings { keys, ..Settings::default() }
}

/// The store of the cluster engine that a path or URL means, if it means one.
pub fn store_at(path: &std::path::Path) -> Option<Url> {
    let url = path.to_string_lossy().parse::<Url>().unwrap_or_else(|never| match never {});
    (matches!(url, Url::Rados(..)) || EmbeddedStore::is_at(path)).then_some(url)
}
