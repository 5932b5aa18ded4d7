//! The operator's word for the whole command, and what the operator is told beside its result.

use std::{io::Write, time::Duration};

use clap::Args;
use onefold_backend::Word;
use onefold_console::size::Size;

/// The heading of options that each verb takes.
pub(crate) const EVERY_VERB: &str = "Options of every verb";

/// Options that go with each verb.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Options {
    /// Changes archives and cluster folders that belong to this user too. A file server may show
    /// root's files as those of another user
    #[arg(
        long,
        global = true,
        value_name = "UID",
        hide_short_help = true,
        value_parser = user,
        help_heading = EVERY_VERB,
    )]
    owner: Option<u32>,

    /// Promises that no other machine writes to the store. Needed where its file system may be
    /// shared, and locks or direct I/O do not show who else uses it
    #[arg(long, global = true, hide_short_help = true, help_heading = EVERY_VERB)]
    one_host: bool,

    /// Waits for so long while another process changes an archive in a bucket, before the verb gives up
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 0,
        hide_short_help = true,
        help_heading = EVERY_VERB,
    )]
    lock_wait: u32,

    /// Keeps at most so much of archives in object stores on this host, so that it is not asked for again;
    /// with 0 nothing
    #[arg(
        long,
        global = true,
        value_name = "SIZE",
        default_value = "1G",
        hide_short_help = true,
        help_heading = EVERY_VERB,
    )]
    cache_limit: Size,
}

fn user(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("a user is named by a number: `id -u {text}` says it"))
}

/// Takes the operator's word.
pub(crate) fn give(options: Options) {
    onefold::parts::kept_objects::limit_to(options.cache_limit.0);
    onefold::parts::bucket::wait_for_others(Duration::from_secs(options.lock_wait.into()));
    onefold::parts::operator::give(Word { owner: options.owner, one_host: options.one_host }, warn);
}

/// Tells something that does not keep the verb from its work.
fn warn(sentence: &str) {
    // There is nowhere else to say it.
    let _ = writeln!(
        std::io::stderr(),
        "onefold: warning: {}",
        onefold_console::failure::one_line(sentence)
    );
}
