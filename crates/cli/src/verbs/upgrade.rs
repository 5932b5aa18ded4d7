//! `onefold upgrade`: an archive that an older program made gets the features of a new one.

use std::path::PathBuf;

use clap::Args;
use onefold_archive::{READER_BYTES, Settings, features_to_come, upgrade_telling};
use serde_json::json;

use super::archive_at;
use onefold::parts::archive_dir::name_archive;
use onefold_console::{failure::Failure, output::Answer, progress::Progress};

/// Gives an archive that an older program made the features of a new one, without writing data again
///
/// Programs that lack one of these features refuse the archive afterwards, and say which feature
/// they lack; there is no way back. So install the new program first wherever the archive is used.
/// The verb asks no question. It needs the archive alone: it refuses while somebody puts, reads,
/// serves or collects. A kill or a power failure at any moment leaves the archive as it was, or
/// upgraded. How an archive cuts, compresses, fingerprints and places chunks stays.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold upgrade backups --dry-run\n  \
                  onefold upgrade backups")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// Says which features would come, and changes nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    #[command(flatten)]
    answer: Answer,
}

/// Why other engines have no upgrade.
const NONE: &str = "each of its features comes with its first use, and it needs no upgrade";

/// Upgrades, and says what came.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let Options { store, dry_run, answer } = options;
    let directory = archive_at(store, NONE)?;
    let shown = store.display();
    let archive = match dry_run {
        true => directory.open_to_read(READER_BYTES)?,
        false => directory.open(Settings::default())?,
    };
    let features = features_to_come(archive.label());
    if !dry_run {
        if !features.is_empty()
            && let Some(pid) = directory.server()?.and_then(|mut server| server.pid().ok())
        {
            return Err(Failure::new(format!(
                "{shown} is served by process {pid}, and an upgrade needs it alone: end the server \
                 first"
            )));
        }
        let bar = Progress::of("writing tables", "containers");
        upgrade_telling(&archive, &mut |done, most| bar.set(done, most))
            .map_err(|error| name_archive(store, error))?;
    }
    let report = json!({
        "store": shown.to_string(), "features": features,
        "upgraded": !dry_run && !features.is_empty(),
    });
    let list = features.join(", ");
    let refused = "programs that do not know these refuse it";
    let words = match (features.is_empty(), dry_run) {
        (true, _) => {
            format!("nothing to upgrade: {shown} has all features that need no data written again")
        }
        (false, true) => format!("would give {shown}: {list}\n{refused} afterwards"),
        (false, false) => format!("gave {shown}: {list}\n{refused} from now on"),
    };
    answer.tell(&report, words)
}
