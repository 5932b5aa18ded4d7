//! Where the keys of encrypted stores come from: options that go with each verb.

use std::{
    ffi::OsString,
    io::IsTerminal,
    os::fd::RawFd,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use clap::{
    Args,
    builder::{TypedValueParser, ValueParserFactory},
};
use onefold_backend::{
    last_act::LastAct,
    secrets::{GivenWords, SystemRandom, new_key_file},
};
use onefold_console::failure::one_line;
use onefold_core::{Error, Kind, Result};
use onefold_seal::{Secret, SlotSecret, key_file_text, to_words};
use zeroize::Zeroizing;

use onefold::parts::{
    keys::{self, Asker, Whence},
    witness,
};

use crate::operator::EVERY_VERB;

/// Options that go with each verb.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Where the key of an encrypted store is: `passphrase`, `recovery` (both are asked for), a key
    /// file's path, `command:PROGRAM`, or `credential` of a service. With it, stores that are not
    /// encrypted are refused. Encryption is experimental
    #[arg(
        long,
        global = true,
        value_name = "WHERE",
        hide_short_help = true,
        help_heading = EVERY_VERB,
    )]
    key: Option<KeyFrom>,

    /// Reads the passphrase or the recovery key from this open descriptor, up to the end of a line
    #[arg(long, global = true, value_name = "N", hide_short_help = true, help_heading = EVERY_VERB)]
    passphrase_fd: Option<RawFd>,

    /// Opens an encrypted store by an older copy of its keys, when the newest was changed or lost: keys
    /// that were removed since open it again. Also opens a store in an older state than was seen here or
    /// the witness knows, or that others changed since it was seen, and without asking the witness
    #[arg(long, global = true, hide_short_help = true, help_heading = EVERY_VERB)]
    accept_older: bool,

    /// Program, by its whole path, that keeps elsewhere in which state block stores are: it is told of
    /// each while a verb or a server changes it, and asked before it is opened. A store that is older
    /// than it knows is refused, and so is any while it does not answer
    #[arg(
        long,
        global = true,
        value_name = "PROGRAM",
        hide_short_help = true,
        help_heading = EVERY_VERB,
    )]
    witness: Option<PathBuf>,
}

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyFrom(pub(crate) Whence);

/// Understands a name of where a key is.
#[derive(Clone)]
pub(crate) struct KeyFromParser;

impl TypedValueParser for KeyFromParser {
    type Value = KeyFrom;

    fn parse_ref(
        &self,
        _: &clap::Command,
        _: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<KeyFrom, clap::Error> {
        if value.is_empty() || value == "file:" || value == "command:" {
            let why = "a key is named by passphrase, recovery, credential, command:PROGRAM or the path of \
                       a file, and not by nothing";
            return Err(clap::Error::raw(clap::error::ErrorKind::ValueValidation, why));
        }
        Ok(KeyFrom(whence(value.to_owned())))
    }
}

impl ValueParserFactory for KeyFrom {
    type Parser = KeyFromParser;

    fn value_parser() -> KeyFromParser {
        KeyFromParser
    }
}

fn whence(value: OsString) -> Whence {
    match value.to_str() {
        Some("passphrase") => Whence::Passphrase,
        Some("recovery") => Whence::Recovery,
        Some("credential") => Whence::Credential,
        Some(text) => match text.strip_prefix("command:") {
            Some(program) => Whence::Command(program.into()),
            None => Whence::File(text.strip_prefix("file:").unwrap_or(text).into()),
        },
        None => Whence::File(PathBuf::from(value)),
    }
}

static GIVEN: OnceLock<Option<Arc<GivenWords>>> = OnceLock::new();

/// What `--passphrase-fd` gives.
pub(crate) fn given() -> Option<&'static GivenWords> {
    GIVEN.get().and_then(Option::as_deref)
}

/// Takes what was said about keys, for the whole command.
///
/// # Errors
/// `InvalidInput`: there is no such descriptor.
pub(crate) fn give(options: &Options) -> Result<()> {
    if let Some(program) = &options.witness {
        witness::give(program.clone());
    }
    let given = options.passphrase_fd.map(GivenWords::take).transpose()?.map(Arc::new);
    let can_ask = given.is_some() || has_terminal();
    // Several stores may want it, and so may `create`.
    let _ = GIVEN.set(given.clone());
    let ask = move |what: &str| given.as_ref().map_or_else(|| asked(what), |given| given.words());
    let whence = options.key.clone().map(|key| key.0);
    let asker = Asker::new(whence, Box::new(ask), can_ask, options.accept_older);
    // Who gives a passphrase means an encrypted store, as who names a key does.
    keys::give(asker.refusing_plain(options.passphrase_fd.is_some()));
    Ok(())
}

/// True when a person can be asked.
pub(crate) fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks the person at the terminal, who does not see what is typed.
pub(crate) fn asked(what: &str) -> Result<Zeroizing<Vec<u8>>> {
    // Names of stores may be anything.
    let what = one_line(what);
    let last = LastAct::of_terminal();
    let typed = rpassword::prompt_password(format!("{what}: ")).map_err(|e| {
        let why =
            format!("there is no terminal to ask for the {what} ({e}); --passphrase-fd reads it");
        Error::new(Kind::Denied, why)
    })?;
    drop(last);
    Ok(Zeroizing::new(typed.into_bytes()))
}

/// Asks for a new passphrase of a store, twice; `None` when it is empty.
pub(crate) fn asked_anew(store: &Path) -> Result<Option<Zeroizing<Vec<u8>>>> {
    let first = asked(&format!("new passphrase of {} (empty for none)", store.display()))?;
    if first.is_empty() {
        return Ok(None);
    }
    if *first != *asked("the same again")? {
        return Err(Error::new(Kind::InvalidInput, "the two passphrases differ"));
    }
    Ok(Some(first))
}

/// A new secret for a slot.
pub(crate) struct New {
    pub(crate) secret: SlotSecret,
    /// A recovery key as it is written down.
    pub(crate) words: Option<Zeroizing<String>>,
}

impl New {
    /// A new recovery key.
    pub(crate) fn recovery() -> Result<New> {
        keys::guard()?;
        let key = Secret::drawn(&SystemRandom)?;
        let words = Some(to_words(&key)?);
        Ok(New { secret: SlotSecret::Key(key), words })
    }
}

/// A new secret of this kind for the store with this id at this path. A key file that is not there is made.
pub(crate) fn new_secret(
    whence: &Whence,
    given: Option<&GivenWords>,
    id: &[u8; 16],
    store: &Path,
) -> Result<New> {
    keys::guard()?;
    let secret = match (whence, given) {
        (Whence::Recovery, _) => return New::recovery(),
        (Whence::Passphrase, Some(given)) => SlotSecret::Passphrase(given.words()?),
        (Whence::Passphrase, None) => {
            let empty = || Error::new(Kind::InvalidInput, "a passphrase is empty");
            SlotSecret::Passphrase(asked_anew(store)?.ok_or_else(empty)?)
        }
        (Whence::File(path), _) if !path.exists() => {
            let key = Secret::drawn(&SystemRandom)?;
            new_key_file(path, &key_file_text(&key))?;
            SlotSecret::Key(key)
        }
        _ => {
            let asker = keys::asker();
            let asker = asker.ok_or_else(|| Error::new(Kind::Denied, "nobody can be asked"))?;
            asker.secret(whence, id, store)?
        }
    };
    Ok(New { secret, words: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_names_no_key() {
        for line in ["--key=", "--key=file:", "--key=command:"] {
            let read =
                crate::configuration::read(["onefold", "ls", "a", line].map(Into::into).to_vec());
            assert!(format!("{:?}", read.unwrap_err()).contains("not by nothing"), "{line}");
        }
    }

    #[test]
    fn a_key_is_named_by_where_it_is() {
        let named = |text: &str| whence(text.into());
        assert_eq!(named("passphrase"), Whence::Passphrase);
        assert_eq!(named("credential"), Whence::Credential);
        assert_eq!(named("recovery"), Whence::Recovery);
        assert_eq!(named("command:/bin/kms"), Whence::Command("/bin/kms".into()));
        assert_eq!(named("/root/key"), Whence::File("/root/key".into()));
        assert_eq!(named("file:passphrase"), Whence::File("passphrase".into()));
    }
}
