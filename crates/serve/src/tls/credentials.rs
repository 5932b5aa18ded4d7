//! The files by which a server proves who it is, and knows its clients.

use std::{
    fs::File,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime, pem::PemObject,
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
};

/// The certificates of the authorities whose clients are known.
pub const CA: &str = "ca-cert.pem";
/// The list of certificates that the authority has taken back.
pub const CA_LIST: &str = "ca-crl.pem";
/// The certificate of the server, and behind it those up to the authority.
pub const SERVER_CERTIFICATE: &str = "server-cert.pem";
/// The private key of the server.
pub const SERVER_KEY: &str = "server-key.pem";

/// Bytes of a file at most: more is no certificate and no list that anybody keeps.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The files of a directory, named as qemu and libnbd name them: `ca-cert.pem`, `server-cert.pem`,
/// `server-key.pem`, and `ca-crl.pem` if there is one.
///
/// *Threads:* it may be read anew while connections use it.
pub struct Credentials {
    directory: PathBuf,
    loaded: Mutex<Arc<Loaded>>,
}

/// The files as they were at one moment.
pub(crate) struct Loaded {
    pub(crate) config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    /// True when there is a list of certificates that were taken back.
    takes_back: bool,
}

impl Loaded {
    /// True when these files let in a client that shows such certificates, now.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((own, others)) = chain.split_first() else { return false };
        let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else {
            return false;
        };
        self.verifier.verify_client_cert(own, others, UnixTime::since_unix_epoch(now)).is_ok()
    }
}

impl Credentials {
    /// Reads the files of a directory.
    ///
    /// # Errors
    /// `NotFound` when one is missing; `Denied` when others can read the key or change one; `InvalidInput`
    /// when a file is not what its name says, or the key is another certificate's; `Io`.
    pub fn read(directory: &Path) -> Result<Credentials> {
        let loaded = Mutex::new(Arc::new(load(directory)?));
        Ok(Credentials { directory: directory.to_owned(), loaded })
    }

    /// Reads the files again. When that fails, those read before stay.
    ///
    /// # Errors
    /// Those of [`read`](Credentials::read); `NotFound` when the list of certificates that were taken
    /// back is gone: whom it kept out would come in.
    pub fn reload(&self) -> Result<()> {
        let loaded = Arc::new(load(&self.directory)?);
        let mut before = self.loaded.lock();
        if before.takes_back && !loaded.takes_back {
            let path = self.directory.join(CA_LIST);
            let text = format!(
                "{} is gone, and whom it kept out would come in: put it back, or start the server again \
                 without it",
                path.display()
            );
            return Err(Error::new(Kind::NotFound, text));
        }
        *before = loaded;
        Ok(())
    }

    /// The files as they were read last.
    pub(crate) fn now(&self) -> Arc<Loaded> {
        self.loaded.lock().clone()
    }
}

fn load(directory: &Path) -> Result<Loaded> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let wrong = |name: &str, why: &dyn std::fmt::Display| {
        let path = directory.join(name);
        Error::new(Kind::InvalidInput, format!("{}: {why}", path.display()))
    };
    let mut roots = RootCertStore::empty();
    for authority in certificates(directory, CA)? {
        roots.add(authority).map_err(|error| wrong(CA, &error))?;
    }
    let mut verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let list = read(directory, CA_LIST).map(Some).or_else(missing)?;
    let takes_back = list.is_some();
    if let Some(text) = list {
        let lists: Vec<_> = CertificateRevocationListDer::pem_slice_iter(&text)
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| wrong(CA_LIST, &error))?;
        if lists.is_empty() {
            return Err(wrong(CA_LIST, &"there is no list of certificates that were taken back"));
        }
        verifier = verifier.with_crls(lists);
    }
    let verifier = verifier.build().map_err(|error| wrong(CA, &error))?;
    let chain = certificates(directory, SERVER_CERTIFICATE)?;
    let key = PrivateKeyDer::from_pem_slice(&read_key(directory)?)
        .map_err(|_| wrong(SERVER_KEY, &"there is no private key in it that can be read"))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| wrong(SERVER_CERTIFICATE, &error))?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                wrong(SERVER_KEY, &format!("it is not the key of {SERVER_CERTIFICATE}"))
            }
            error => wrong(SERVER_CERTIFICATE, &error),
        })?;
    // Each connection proves anew who it is, and nothing that is sent again is taken for new.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Loaded { config: Arc::new(config), verifier, takes_back })
}

fn missing<T>(error: Error) -> Result<Option<T>> {
    if error.kind() == Kind::NotFound { Ok(None) } else { Err(error) }
}

fn certificates(directory: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(directory, name)?;
    let wrong = |why: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidInput, format!("{}: {why}", directory.join(name).display()))
    };
    let all: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| wrong(&error))?;
    match all.is_empty() {
        true => Err(wrong(&"there is no certificate in it (a PEM file has BEGIN CERTIFICATE)")),
        false => Ok(all),
    }
}

fn open(directory: &Path, name: &str) -> Result<(PathBuf, File)> {
    let path = directory.join(name);
    let failed = |error| Error::from_io(format_args!("{} can't be read", path.display()), error);
    // A pipe would have the server wait for its other end.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(&path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("{} is no regular file", path.display()),
        ));
    }
    Ok((path, file))
}

fn content(path: &Path, file: File) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(|error| Error::from_io(format_args!("{} can't be read", path.display()), error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("{} has more than {FILE_BYTES_MAX} bytes", path.display()),
        ));
    }
    Ok(text)
}

/// A file by which clients are told apart: nobody else may be able to change it.
fn read(directory: &Path, name: &str) -> Result<Vec<u8>> {
    let (path, file) = open(directory, name)?;
    let mode = own_mode(&path, &file)?.mode;
    if mode & 0o022 != 0 {
        let shown = path.display();
        return Err(Error::new(
            Kind::Denied,
            format!(
                "{shown} can be changed by others: look at what it holds, and run chmod 644 {shown}"
            ),
        ));
    }
    content(&path, file)
}

/// The file of the key, which nobody else may be able to read: only a group that root chose may read it
/// beside.
fn read_key(directory: &Path) -> Result<Vec<u8>> {
    let (path, file) = open(directory, SERVER_KEY)?;
    let Own { mode, of_root } = own_mode(&path, &file)?;
    let is_root = rustix::process::geteuid().is_root();
    let for_others = if of_root && !is_root { 0o037 } else { 0o077 };
    if mode & for_others != 0 {
        let shown = path.display();
        return Err(Error::new(
            Kind::Denied,
            format!(
                "{shown} can be read by others: run chmod 600 {shown}; if somebody may have read it, issue \
                 a new certificate"
            ),
        ));
    }
    content(&path, file)
}

/// The mode of a file that is this user's or root's.
struct Own {
    mode: u32,
    of_root: bool,
}

/// # Errors
/// `Denied` when the file belongs to another user.
fn own_mode(path: &Path, file: &File) -> Result<Own> {
    let found = file.metadata().map_err(|error| {
        Error::from_io(format_args!("{} can't be looked at", path.display()), error)
    })?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        let shown = path.display();
        return Err(Error::new(
            Kind::Denied,
            format!("{shown} belongs to another user, who can read it and change it"),
        ));
    }
    Ok(Own { mode: found.mode(), of_root: found.uid() == 0 })
}
