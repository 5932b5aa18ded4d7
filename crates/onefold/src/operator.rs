//! What the operator says for the whole command, and what the operator is told beside its result.

use std::{io::Write, sync::OnceLock};

use clap::Args;
use onefold_backend::Word;

/// Options that go with each verb.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Options {
    /// Changes archives and cluster folders of this user too, as where a file server shows the
    /// superuser's files as those of another one
    #[arg(long, global = true, value_name = "UID", hide_short_help = true)]
    owner: Option<u32>,

    /// Says that no other machine writes to the store, archive or folder, where its file system
    /// may be shared and locks or direct I/O do not tell
    #[arg(long, global = true, hide_short_help = true)]
    one_host: bool,
}

static WORD: OnceLock<Word> = OnceLock::new();

/// Takes the operator's word.
pub(crate) fn give(options: Options) {
    let word = Word { owner: options.owner, one_host: options.one_host };
    // It is given once, at the beginning.
    let _ = WORD.set(word);
}

/// What the operator gave their word for.
pub(crate) fn word() -> Word {
    WORD.get().copied().unwrap_or_default()
}

/// Tells something that does not keep the verb from its work.
pub(crate) fn warn(sentence: &str) {
    // There is nowhere else to say it.
    let _ = writeln!(
        std::io::stderr(),
        "onefold: warning: {}",
        onefold_console::failure::one_line(sentence)
    );
}
