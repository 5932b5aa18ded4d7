//! `onefold tls`: an authority of one's own, and the certificates by which servers and clients know
//! each other.
//!
//! *Invariants.* Nothing that is there is replaced, but for the list of certificates that were taken
//! back, which takes its place whole. Directories are made 0700 and files 0600. What could not be
//! written whole is removed.

use std::{
    fs::{DirBuilder, File},
    io::{ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use onefold_backend::{Directory, Word};
use onefold_core::{Error, Files, Kind, Result};
use onefold_serve::tls::{Authority, CA, CA_LIST, CLIENT, Holder, SERVER_CERTIFICATE, SERVER_KEY};
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};
use serde_json::json;

use onefold::parts::operator::word;
use onefold_console::{failure::Failure, output::Answer};

/// The key of the authority; no server needs it.
const CA_KEY: &str = "ca-key.pem";

/// How long another process may take to change the list of certificates that were taken back.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that are read of a file at most.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Names of files that clients of libnbd and qemu look for.
const CLIENT_CERTIFICATE: &str = "client-cert.pem";
const CLIENT_KEY: &str = "client-key.pem";

/// Makes certificates for serving over a network: an authority, and what it issues
///
/// The authority's directory has the key with which anybody can make himself a client of your servers:
/// keep it on one machine, not on a server. What is issued for a machine is a directory that is copied
/// there.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold tls init ca\n  \
                  onefold tls issue ca nas.example.com --server\n  \
                  onefold tls issue ca vm-host\n  \
                  onefold tls revoke ca vm-host")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes an authority in a new directory
    #[command(after_help = "Examples:\n  onefold tls init ca")]
    Init {
        /// The directory, which is made
        directory: PathBuf,
        /// Days until the authority's certificate expires, and with it all that it issued
        #[arg(long, default_value_t = 3650, value_name = "DAYS", value_parser = days())]
        days: u32,
        #[command(flatten)]
        answer: Answer,
    },
    /// Makes a key and a certificate, in a new directory of this name below the authority's
    ///
    /// A client's directory is what `tls-certificates` of nbdcopy and `dir` of qemu's tls-creds-x509
    /// take, a server's what `onefold serve --tls` takes.
    #[command(after_help = "Examples:\n  \
                      onefold tls issue ca vm-host\n  \
                      onefold tls issue ca nas.example.com --server --also 192.0.2.7")]
    Issue {
        /// The authority's directory
        directory: PathBuf,
        /// Of a client, the name that stands behind 'client:' in --access; of a server, the name or
        /// address by which clients call it
        name: String,
        /// For a server
        #[arg(long)]
        server: bool,
        /// A further name or address of the server; can be given several times
        #[arg(long, value_name = "NAME", requires = "server")]
        also: Vec<String>,
        /// Days until the certificate expires
        #[arg(long, default_value_t = 825, value_name = "DAYS", value_parser = days())]
        days: u32,
        #[command(flatten)]
        answer: Answer,
    },
    /// Takes the certificate of a client back: adds it to the authority's ca-crl.pem
    ///
    /// Copy that file into the directories of the servers, and send them SIGHUP.
    #[command(after_help = "Examples:\n  onefold tls revoke ca vm-host")]
    Revoke {
        /// The authority's directory
        directory: PathBuf,
        /// The client's name, or a file with its certificate
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

/// Makes what was asked for.
pub(crate) fn run(options: &Options) -> std::result::Result<(), Failure> {
    match &options.verb {
        Verb::Init { directory, days, answer } => init(directory, *days, answer),
        Verb::Issue { directory, name, server, also, days, answer } => {
            let names = [std::slice::from_ref(name), also].concat();
            let holder =
                if *server { Holder::Server(&names) } else { Holder::Client(name.as_str()) };
            issue(directory, name, holder, *days, answer)
        }
        Verb::Revoke { directory, name, answer } => revoke(directory, name, answer),
    }
}

fn init(directory: &Path, days: u32, answer: &Answer) -> std::result::Result<(), Failure> {
    let made = Authority::make(days)?;
    write_new(directory, &[(CA_KEY, &made.key), (CA, &made.certificate)])?;
    let shown = directory.display();
    answer.tell(
        &json!({ "directory": shown.to_string(), "days": days }),
        format_args!(
            "{shown} is an authority now; keep {CA_KEY} to yourself, and issue certificates by `onefold \
             tls issue {shown} NAME`"
        ),
    )
}

fn issue(
    directory: &Path,
    name: &str,
    holder: Holder<'_>,
    days: u32,
    answer: &Answer,
) -> std::result::Result<(), Failure> {
    let (authority, own) = authority(directory)?;
    let made = authority.issue(holder, days)?;
    let to = directory.join(name);
    let (certificate, key) = match holder {
        Holder::Client(_) => (CLIENT_CERTIFICATE, CLIENT_KEY),
        Holder::Server(_) => (SERVER_CERTIFICATE, SERVER_KEY),
    };
    write_new(&to, &[(key, &made.key), (certificate, &made.certificate), (CA, &own)])?;
    let shown = to.display();
    // What a server's certificate is called matters to nobody.
    let client = made.name.strip_prefix(CLIENT).map(|name| format!("client:{name}"));
    let report = json!({ "directory": shown.to_string(), "identity": client, "days": days });
    match client {
        Some(client) => answer.tell(
            &report,
            format_args!("{shown} is for this client; --access calls it '{client}'"),
        ),
        None => answer
            .tell(&report, format_args!("{shown} is for this server: onefold serve --tls {shown}")),
    }
}

fn revoke(directory: &Path, name: &str, answer: &Answer) -> std::result::Result<(), Failure> {
    let (authority, _) = authority(directory)?;
    let below = directory.join(name).join(CLIENT_CERTIFICATE);
    let path = if below.exists() { below } else { PathBuf::from(name) };
    let certificate = read(&path)?;
    // Each change begins with the list as the one before left it.
    let _alone = alone(directory)?;
    let list = directory.join(CA_LIST);
    let before = match read(&list) {
        Err(error) if error.kind() == Kind::NotFound => None,
        read => Some(read?),
    };
    let after = authority
        .revoke(&certificate, before.as_deref())
        .map_err(|error| error.context(path.display()))?;
    let aside = directory.join(format!("{CA_LIST}.new"));
    match std::fs::remove_file(&aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Error::from_io(aside.display(), error).into());
        }
        _ => {}
    }
    write_file(&aside, &after)?;
    std::fs::rename(&aside, &list).map_err(|error| Error::from_io(list.display(), error))?;
    sync(directory)?;
    let shown = list.display();
    answer.tell(
        &json!({ "list": shown.to_string(), "certificate": path.display().to_string() }),
        format_args!(
            "{} is on {shown} now: copy it to the directories of your servers, and send them SIGHUP",
            path.display()
        ),
    )
}

/// Locks the list of an authority until the file is dropped: by its key, which nobody else may open.
///
/// # Errors
/// `Busy` after half a minute.
fn alone(directory: &Path) -> Result<File> {
    let path = directory.join(CA_KEY);
    let key = File::open(&path).map_err(|error| Error::from_io(path.display(), error))?;
    let begun = Instant::now();
    while let Err(error) = flock(&key, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::AGAIN && error != Errno::INTR {
            return Err(Error::from_io(path.display(), error.into()));
        }
        if begun.elapsed() >= PATIENCE {
            let message = format!("another process changes the list in {}", directory.display());
            return Err(Error::new(Kind::Busy, message));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(key)
}

/// The authority in a directory, and its certificate.
fn authority(directory: &Path) -> Result<(Authority, String)> {
    let own = |name| {
        read(&directory.join(name)).map_err(|error| match error.kind() {
            Kind::NotFound => Error::new(
                Kind::NotFound,
                format!(
                    "{} is no authority: there is no {name} in it (onefold tls init)",
                    directory.display()
                ),
            ),
            _ => error,
        })
    };
    let (certificate, key) = (own(CA)?, own(CA_KEY)?);
    let authority = Authority::from_pem(&certificate, &key)
        .map_err(|error| error.context(directory.display()))?;
    Ok((authority, certificate))
}

/// The text of a file of an authority's. Its key is this user's or root's, and nobody else may read it.
fn read(path: &Path) -> Result<String> {
    let failed = |error| Error::from_io(format_args!("{} can't be read", path.display()), error);
    let wrong = |kind, why: &str| Err(Error::new(kind, format!("{} {why}", path.display())));
    // A pipe would have us wait for its other end.
    let calm = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(calm).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return wrong(Kind::InvalidInput, "is no regular file");
    }
    if path.ends_with(CA_KEY) {
        if ![rustix::process::geteuid().as_raw(), 0].contains(&found.uid()) {
            return wrong(Kind::Denied, "belongs to another user, who can read it and change it");
        }
        if found.mode() & 0o077 != 0 {
            let why = "can be read by others: run chmod 600 on it; if somebody may have read it, make a \
                       new authority";
            return wrong(Kind::Denied, why);
        }
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Makes a directory with these files; nothing of it stays when that fails.
fn write_new(directory: &Path, files: &[(&str, &String)]) -> Result<()> {
    DirBuilder::new().mode(0o700).create(directory).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::new(
            Kind::Exists,
            format!(
                "{} is there already, and is not replaced: rename or remove it first",
                directory.display()
            ),
        ),
        _ => Error::from_io(format_args!("{} can't be made", directory.display()), error),
    })?;
    // From here on all is done below the directory itself: another user may put a link in its place.
    let word = Word { one_host: true, ..word() };
    let own = Directory::open_itself(directory, true, word)
        .inspect_err(|_| drop(std::fs::remove_dir(directory)))?;
    let mut made = Vec::new();
    let mut write = || -> Result<()> {
        for (name, text) in files {
            let file = own.create(name)?;
            made.push(*name);
            file.write_at(0, text.as_bytes())?;
            file.sync()?;
        }
        own.sync_names()?;
        match directory.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
            _ => sync(Path::new(".")),
        }
    };
    let written = write();
    if written.is_err() {
        made.iter().for_each(|name| drop(own.remove(name)));
        // Only an empty one goes.
        let _ = std::fs::remove_dir(directory);
    }
    written
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write()
        .map_err(|error| Error::from_io(format_args!("{} can't be written", path.display()), error))
}

fn sync(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| {
        Error::from_io(format_args!("{} can't be made durable", directory.display()), error)
    })
}
