//! `onefold audit`: whether a log of `serve --audit` is whole.

use std::{
    fs::File,
    io::{self, BufReader},
    path::PathBuf,
};

use clap::Args;
use onefold_backend::audit::Verified;
use onefold_console::{failure::Failure, size::counted};
use onefold_core::Error;
use serde_json::json;

/// Proves that no line of an audit log was changed, removed or inserted
///
/// Each line of the log names the SHA-256 of the line before it. What was cut off at the end shows only
/// by the last line's hash: compare it with one that you noted before, with --head.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold audit /var/log/onefold/audit\n  \
                  onefold audit audit.2 audit.1 audit\n  \
                  journalctl ONEFOLD_AUDIT=1 _PID=1234 -o cat | onefold audit -")]
pub(crate) struct Options {
    /// Files of one log, the oldest first; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The hash of a line, which has to be one of the log's: 64 hexadecimal digits
    #[arg(long, value_name = "HASH")]
    head: Option<String>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Reads the files; fails at the first line that does not follow the one before it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut verified = Verified::looking_for(options.head.clone());
    for path in &options.files {
        let read = match path.to_str() {
            Some("-") => verified.read(io::stdin().lock()),
            _ => {
                let file = File::open(path).map_err(|e| Error::from_io(path.display(), e))?;
                verified.read(BufReader::new(file))
            }
        };
        read.map_err(|error| error.context(path.display()))?;
    }
    if let Some(head) = options.head.as_ref().filter(|_| !verified.met) {
        let why = format!("no line has the hash {head}: the end was cut off, or it is another log");
        return Err(Failure::new(why));
    }
    let head = verified.head.as_deref().unwrap_or("none");
    if options.json {
        let (first, last) = verified.times.clone().unzip();
        println!(
            "{}",
            json!({
                "lines": verified.lines,
                "from_the_beginning": verified.is_from_the_beginning(),
                "begins_after": verified.begins_after,
                "first": first,
                "last": last,
                "lost": verified.lost,
                "torn": verified.torn,
                "head": verified.head,
            })
        );
        return Ok(());
    }
    match &verified.times {
        Some((first, last)) => {
            println!(
                "{} from {first} to {last}, each follows the one before",
                counted(verified.lines, "line")
            );
        }
        None => println!("no lines"),
    }
    if !verified.is_from_the_beginning() {
        println!("the first one follows a line that is not here");
    }
    if verified.lost > 0 {
        println!("{} could not be written, the log says", counted(verified.lost, "line"));
    }
    if verified.torn > 0 {
        println!("{} cut off, which proves nothing", counted(verified.torn, "line"));
    }
    println!("last {head}");
    Ok(())
}
