//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use onefold_console::{completions, manual};

use crate::{
    key,
    operator::{self, EVERY_VERB},
    verbs::{
        accept, audit, backup, cat, check, copy, create, diff, domain, estimate, find, forget, gc,
        get, grow, image, index, inspect, key as keys, ls, mount, mv, node, put, repair, replicate,
        restore, rm, scrub, serve, snapshot, snapshots, status, tls, upgrade, volume, worker,
    },
};

/// Storage that keeps everything once: block volumes, archives, volumes on a cluster
///
/// A block store holds many volumes in one file or device, and each block once. Virtual machines,
/// file systems and tools use the volumes over NBD, and data that a client flushed survives power
/// loss. An archive holds streams and directories, and each chunk once. A store of the cluster
/// engine is in a folder or on Ceph, and its workers deduplicate in the background.
#[derive(Debug, Parser)]
#[command(
    name = "onefold",
    version,
    max_term_width = 100,
    infer_subcommands = false,
    disable_help_subcommand = true
)]
#[command(after_help = "Begin with:\n  \
                  onefold create block disk.onefold --size 100G\n  \
                  onefold volume create disk.onefold vm1 --size 1T\n  \
                  onefold serve disk.onefold --nbd unix:/run/onefold.sock\n\n  \
                  onefold create archive backups\n  \
                  onefold backup backups /home --set home\n\n\
                  Each verb shows examples of its own: onefold VERB --help")]
pub(crate) struct Arguments {
    /// Reads more options from a TOML file: a section for each verb, like [serve] or
    /// [volume.create], has the options by their names. An option on the command line wins
    #[arg(long, global = true, value_name = "FILE", help_heading = EVERY_VERB)]
    pub(crate) config: Option<PathBuf>,

    /// Level of the log on standard error: off, error, warn, info, debug or trace, also by module
    /// [default: RUST_LOG, or info]
    #[arg(long, global = true, value_name = "LEVEL", help_heading = EVERY_VERB)]
    pub(crate) log: Option<String>,

    /// Directory of the control sockets, by which verbs ask the server of a store. Server and verb
    /// need the same one. Other users may not enter it (mode 0700); a server makes it when it is
    /// missing [default: RUNTIME_DIRECTORY, else /run/onefold/root or XDG_RUNTIME_DIR/onefold]
    #[arg(long, global = true, value_name = "DIR", help_heading = EVERY_VERB)]
    pub(crate) control: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) operator: operator::Options,

    #[command(flatten)]
    pub(crate) key: key::Options,

    /// The verb.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Create(create::Options),
    Volume(volume::Options),
    Snapshot(snapshot::Options),
    Grow(grow::Options),
    Export(image::ExportOptions),
    Import(image::ImportOptions),
    Send(replicate::SendOptions),
    Receive(replicate::ReceiveOptions),
    Serve(serve::Options),
    Status(status::Options),
    Check(check::Options),
    Scrub(scrub::Options),
    Repair(repair::Options),
    Backup(backup::Options),
    Copy(copy::Options),
    Snapshots(snapshots::Options),
    Restore(restore::Options),
    Cat(cat::Options),
    Mount(mount::Options),
    Diff(diff::Options),
    Find(find::Options),
    Forget(forget::Options),
    Undelete(forget::UndeleteOptions),
    Put(put::Options),
    Get(get::Options),
    Ls(ls::Options),
    Rm(rm::Options),
    Mv(mv::Options),
    Gc(gc::Options),
    Worker(worker::Options),
    Node(node::Options),
    Index(index::Options),
    Accept(accept::Options),
    Audit(audit::Options),
    Upgrade(upgrade::Options),
    Key(keys::Options),
    Domain(domain::Options),
    Tls(tls::Options),
    Estimate(estimate::Options),
    Inspect(inspect::Options),
    Completions(completions::Options),
    Man(manual::Options),
    /// Prints the page of the reference about metrics
    #[command(hide = true)]
    Metrics,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Every verb that does something, verbs of verbs included.
    fn verbs(command: &clap::Command, path: &str, all: &mut Vec<(String, clap::Command)>) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let path = format!("{path} {}", verb.get_name());
            all.push((path.clone(), verb.clone()));
            verbs(verb, &path, all);
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    /// The words of a line, as a shell has them: what stands between single quotes is one.
    fn typed(line: &str) -> Vec<String> {
        let (mut words, mut is_quoted) = (vec![String::new()], false);
        for letter in line.chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                letter => words.last_mut().unwrap().push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_verb_shows_examples_that_can_be_typed() {
        let mut all = vec![("onefold".to_owned(), Arguments::command())];
        verbs(&Arguments::command(), "onefold", &mut all);
        assert!(all.len() > 12);
        for (path, verb) in all {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples: Vec<&str> = help
                .lines()
                .filter_map(|line| line.strip_prefix("  "))
                .filter(|l| l.starts_with("onefold"))
                .collect();
            assert!(!examples.is_empty(), "{path} has no example");
            for example in examples {
                let mut words = example.split_whitespace();
                assert!(
                    path.split_whitespace().all(|verb| words.any(|word| word == verb)),
                    "{path}: {example}"
                );
                let command = example.split(['<', '>', '|']).next().unwrap_or_default();
                let typed = typed(command).into_iter().map(std::ffi::OsString::from).collect();
                crate::configuration::read(typed).unwrap_or_else(|e| panic!("{example}: {e:?}"));
            }
        }
    }

    #[test]
    fn every_verb_that_ends_answers_in_json() {
        // These run until they are stopped, or write what was stored, or what shells and readers of
        // manuals need.
        const OTHERS: [&str; 6] = [
            "onefold serve",
            "onefold accept",
            "onefold mount",
            "onefold completions",
            "onefold man",
            "onefold cat",
        ];
        let mut all = Vec::new();
        verbs(&Arguments::command(), "onefold", &mut all);
        let mut global = Vec::new();
        for (path, verb) in &all {
            if verb
                .get_arguments()
                .any(|option| option.get_id() == "json" && option.is_global_set())
            {
                global.push(path.as_str());
            }
            let inherits = global.iter().any(|parent| path.starts_with(parent));
            let leaf = verb.get_subcommands().next().is_none();
            let has = verb.get_arguments().any(|option| option.get_id() == "json") || inherits;
            assert!(!leaf || has || OTHERS.contains(&path.as_str()), "{path} has no --json");
        }
    }

    #[test]
    fn every_option_is_explained() {
        let mut all = Vec::new();
        verbs(&Arguments::command(), "onefold", &mut all);
        for (path, verb) in all {
            assert!(verb.get_about().is_some(), "{path}");
            for option in verb.get_arguments() {
                assert!(option.get_help().is_some(), "{path}: {}", option.get_id());
            }
        }
    }
}
