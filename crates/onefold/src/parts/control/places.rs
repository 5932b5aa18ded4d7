//! Where control sockets are: the one place of a server, and the places where a verb looks for it.
//!
//! | | a server takes commands in | a verb looks there, and in |
//! |---|---|---|
//! | `--control DIR` | DIR | nothing else |
//! | a service of systemd | `$RUNTIME_DIRECTORY`, or for a gateway `control` in it, since clients enter it | `/run/onefold/*`, `/run/onefold-gateway/*/control` |
//! | root | `/run/onefold/root` | `/run/onefold/*`, and `/run/user/UID/onefold` of a store's owner that `--owner UID` names |
//! | anybody else | `$XDG_RUNTIME_DIR/onefold` | `/run/onefold/*` |
//!
//! Root believes no server that a user started by itself unless `--owner` says so: it could say
//! anything, for as long as it likes.
//!
//! `/run/onefold` itself has to be open to the users of services that lie below, and so holds no
//! sockets for commands.

use std::{
    ffi::OsString,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use onefold_backend::peer::own_uid;
use onefold_core::{Error, Kind, Result};

/// Directories of services, and root's own.
const SERVICES: &str = "/run/onefold";

/// Directories of services whose clients enter them.
const GATEWAYS: &str = "/run/onefold-gateway";

/// Where commands are taken in a directory that clients enter.
const INSIDE: &str = "control";

/// The value of `--control`.
static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Takes note of `--control`, once and before anything else is asked.
pub fn choose(directory: PathBuf) {
    // A command line is read once.
    let _ = CHOSEN.set(directory);
}

/// True when the user named the place: a server that can't have it does not start.
pub(super) fn is_chosen() -> bool {
    CHOSEN.get().is_some()
}

/// Where a server of this process takes commands.
///
/// # Errors
/// `NotFound` when there is no such place.
pub(super) fn own() -> Result<PathBuf> {
    if let Some(chosen) = CHOSEN.get() {
        return Ok(chosen.clone());
    }
    if let Some(directory) = of_service() {
        let is_gateway = directory.starts_with(GATEWAYS);
        return Ok(if is_gateway { directory.join(INSIDE) } else { directory });
    }
    if own_uid() == 0 {
        return Ok(Path::new(SERVICES).join("root"));
    }
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let missing = || {
        Error::new(
            Kind::NotFound,
            "there is no place for commands: XDG_RUNTIME_DIR is not set, and --control names none",
        )
    };
    Ok(runtime.ok_or_else(missing)?.join("onefold"))
}

/// Where a server of a store of `owner` may take commands that this process can reach, the
/// likeliest first.
pub(super) fn all(owner: u32) -> Vec<PathBuf> {
    if let Some(chosen) = CHOSEN.get() {
        return vec![chosen.clone()];
    }
    let mut places: Vec<PathBuf> = own().into_iter().collect();
    if own_uid() == 0 && crate::parts::operator::word().owner == Some(owner) {
        places.push(format!("/run/user/{owner}/onefold").into());
    }
    let services = std::fs::read_dir(SERVICES).into_iter().flatten().flatten();
    places.extend(
        services
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            // The superuser's own place lies there too.
            .filter(|path| own().ok().as_ref() != Some(path)),
    );
    let gateways = std::fs::read_dir(GATEWAYS).into_iter().flatten().flatten();
    places.extend(
        gateways
            .map(|entry| entry.path().join(INSIDE))
            .filter(|path| own().ok().as_ref() != Some(path)),
    );
    places
}

/// The places in a sentence.
pub fn told(owner: u32) -> String {
    let places: Vec<String> = all(owner).iter().map(|path| path.display().to_string()).collect();
    match places.is_empty() {
        true => "anywhere".to_owned(),
        false => format!("in {}", places.join(", ")),
    }
}

/// The first of the directories that the service manager made.
fn of_service() -> Option<PathBuf> {
    let all = std::env::var_os("RUNTIME_DIRECTORY")?;
    let all: OsString = all.to_string_lossy().split(':').next()?.into();
    (!all.is_empty()).then(|| all.into())
}

/// Makes the directory that others may enter when a server's own lies in it.
pub(super) fn prepare(own: &Path) {
    if own.parent() == Some(Path::new(SERVICES)) {
        // When it can't be made, making what lies in it says why.
        let _ = DirBuilder::new().mode(0o755).create(SERVICES);
    }
}
