//! Words that people know from earlier versions, and from restic, borg and kopia, answered with ours.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use onefold_console::failure::Failure;

/// Verbs, and what to do instead.
const GONE: [(&[&str], &str); 22] = [
    (
        &["archive"],
        "`onefold create archive` makes an archive, `onefold node` is about its nodes, and all \
         other verbs find out what a store is",
    ),
    (
        &["cluster"],
        "`onefold create cluster` makes a store of the cluster engine, and all other verbs find \
         out what a store is",
    ),
    (
        &["init", "repo", "repository", "rcreate", "repo-create"],
        "`onefold create archive DIR` makes an archive, which `backup` stores into",
    ),
    (
        &["prune", "compact", "maintenance"],
        "`onefold gc` frees the space of what `forget` took out of the lists",
    ),
    (&["extract"], "`onefold restore ARCHIVE SNAPSHOT [PATH…] -C DIR` brings files back"),
    (
        &["dump", "show"],
        "`onefold cat ARCHIVE SNAPSHOT PATH` writes a file of a snapshot to standard output",
    ),
    (&["list", "rlist"], "`onefold snapshots` lists snapshots, and `onefold ls` what is in one"),
    (&["delete"], "`onefold forget ARCHIVE SNAPSHOT` takes a snapshot out of the lists"),
    (&["umount"], "`umount DIR` of the system ends a mount, as Ctrl-C does"),
    (&["unlock", "break-lock"], "locks end with their processes: there is none to remove"),
    (
        &["tag", "rename"],
        "a snapshot stays as it was made: `onefold backup --set NAME --tag WORD` says how the next one \
         is called and found",
    ),
    (
        &["rewrite", "recreate"],
        "a snapshot stays as it was made: `onefold backup --exclude PATTERN` makes one without what shall \
         not be there, and `onefold forget` takes others out of the lists",
    ),
    (
        &["cache"],
        "there is none beside the archive: `onefold index` says where an archive's own index of chunks lies",
    ),
    (
        &["transfer", "sync-to"],
        "`onefold copy FROM TO` copies snapshots from one archive to another, each of them here, at \
         ssh://USER@HOST/PATH or in a bucket",
    ),
    (
        &["self-update", "selfupdate"],
        "a newer package, or `cargo install` of a newer checkout, takes the place of this version",
    ),
    (
        &["rebuild-index", "recover"],
        "`onefold repair` makes an archive's index of chunks anew, and mends what can be mended",
    ),
    (
        &["migrate"],
        "`onefold upgrade` gives an archive of an older version the features of new ones",
    ),
    (
        &["policy"],
        "`onefold forget --policy FILE` and `onefold serve --maintenance FILE` read policies",
    ),
    (&["change-passphrase", "passwd"], "`onefold key` shows and changes who opens a store"),
    (&["info", "rinfo", "stats"], "`onefold status` shows what a store of any engine holds"),
    (&["version"], "`onefold --version` says it"),
    (&["stop"], "a server ends by SIGTERM or Ctrl-C, and closes its store in order"),
];

/// Options, and what is said here instead. Those that a verb has are its own.
const FOREIGN: [(&[&str], &str); 20] = [
    (&["-r", "--repo"], "the archive is the first word after the verb, without an option"),
    (
        &["--target", "-t"],
        "`onefold restore ARCHIVE SNAPSHOT -C DIR` says where files are restored",
    ),
    (
        &["--include", "-i", "--iinclude"],
        "paths and patterns after the snapshot say what is restored: `onefold restore ARCHIVE SNAPSHOT \
         PATH… -C DIR`",
    ),
    (&["--prune"], "`onefold gc ARCHIVE` frees the space of what `forget` took out of the lists"),
    (
        &["--read-data", "--read-data-subset", "--verify-data"],
        "`onefold scrub ARCHIVE` reads all data, and `onefold check` metadata only",
    ),
    (&["--exclude-file"], "`--exclude-from FILE` of `backup` reads patterns from a file"),
    (
        &["--iexclude", "--iexclude-file"],
        "patterns tell small letters from capitals: `--exclude '*.[jJ][pP][gG]'` takes both",
    ),
    (
        &["--files-from", "--files-from-verbatim", "--paths-from-stdin"],
        "`--files-from FILE` of `backup` reads paths from a file, one a line, and `-` is standard input",
    ),
    (
        &["--files-from-raw", "--files0-from", "--from0", "--null", "--paths-delimiter"],
        "`--files-from0 FILE` of `backup` reads paths from a file that end with zero bytes, and `-` is \
         standard input",
    ),
    (
        &["--stdin-filename", "--stdin-from-command", "--stdin-name"],
        "`onefold backup ARCHIVE --stdin NAME -- COMMAND` stores what a command writes under that name",
    ),
    (&["-H"], "`--host NAME` says which host is meant"),
    (
        &["-p", "--password-file", "--password-command"],
        "`--key PATH` names a key file, `--key command:PROGRAM` a program, and `--key passphrase \
         --passphrase-fd N` reads a passphrase from an open descriptor",
    ),
    (
        &["--encryption"],
        "`onefold create archive` asks for a passphrase on a terminal, and `--key` says where else a key is",
    ),
    (
        &["-v", "--verbose", "--debug", "--list"],
        "a verb says at its end what it did: `onefold diff ARCHIVE SET~1 SET` lists what a backup changed, \
         and `--log debug` shows all of the log",
    ),
    (
        &["-q", "--quiet"],
        "results go to standard output, and all else to standard error: `--log error` leaves most of that \
         out, and `2>/dev/null` all of it",
    ),
    (&["-n"], "verbs that can say what they would do have `--dry-run`"),
    (&["-x"], "`--one-file-system` of `backup` stays on the file systems of its paths"),
    (
        &["--compression"],
        "`onefold create archive --compress` chooses it for all that is stored there",
    ),
    (
        &["--no-cache", "--cache-dir", "--cleanup-cache"],
        "there is no cache beside the archive: its index lies where `onefold index` puts it",
    ),
    (
        &["--retry-lock", "--lock-wait"],
        "`put` and `backup` wait for each other: `--wait TIME` says how long, and `--no-wait` fails at once",
    ),
];

/// What is said here instead of a foreign option.
fn instead_of(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return None };
    let typed = typed.split('=').next().unwrap_or_default();
    let (_, instead) = FOREIGN.iter().find(|(options, _)| options.contains(&typed))?;
    Some(Failure::usage(format!("there is no option '{typed}' here: {instead}")))
}

/// `backup` with one word, which may be the archive or what is to be stored.
fn half_a_backup(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let of_backup = error.kind() == ErrorKind::MissingRequiredArgument
        && missing.iter().any(|name| name.starts_with("<PATHS>"))
        && error.render().to_string().contains("Usage: onefold backup ");
    of_backup.then(|| {
        Failure::usage(
            "the archive or the paths are missing: `onefold backup ARCHIVE PATH…` stores the paths into \
             the archive",
        )
    })
}

/// An error of the command line; a verb or an option that is gone, or foreign, is answered with the one that
/// is in its place.
pub(crate) fn wrong_line(error: clap::Error) -> Failure {
    if let Some(failure) = instead_of(&error).or_else(|| half_a_backup(&error)) {
        return failure;
    }
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) => typed.clone(),
        _ => return error.into(),
    };
    match GONE.iter().find(|(verbs, _)| verbs.contains(&&*typed)) {
        Some((_, instead)) => Failure::usage(format!("there is no verb '{typed}' here: {instead}")),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::configuration::read;

    #[test]
    fn a_verb_that_is_gone_is_answered_with_the_one_to_type() {
        for (line, says) in [
            ("onefold archive create a", "onefold create archive"),
            ("onefold cluster status a", "onefold create cluster"),
            ("onefold stats a", "onefold status"),
            ("onefold backup -r a tree", "first word after the verb"),
            ("onefold restore a web1 --target /new", "-C DIR"),
            ("onefold restore a web1 --include=/etc -C x", "paths and patterns"),
            ("onefold forget a --keep-last 1 --prune", "onefold gc"),
            ("onefold check a --read-data", "onefold scrub"),
            ("onefold backup a tree --exclude-file x", "--exclude-from"),
            ("onefold backup a --stdin-filename x", "--stdin NAME"),
            ("onefold snapshots a -H web1", "--host NAME"),
            ("onefold ls a --password-file x", "--passphrase-fd"),
            ("onefold create repo a", "onefold create archive"),
            ("onefold break-lock a", "locks end with their processes"),
            ("onefold rewrite a --exclude x", "stays as it was made"),
            ("onefold cache", "there is none beside the archive"),
            ("onefold transfer a b", "onefold copy FROM TO"),
            ("onefold self-update", "cargo install"),
            ("onefold rebuild-index a", "onefold repair"),
            ("onefold backup a tree --iexclude *.JPG", "[jJ]"),
            ("onefold backup a tree --files-from-raw x", "--files-from0 FILE"),
            ("onefold put a name -r tree --files-from x", "`--files-from FILE` of `backup`"),
            ("onefold backup a tree -v", "--log debug"),
            ("onefold check a -q", "--log error"),
            ("onefold check a -n", "--dry-run"),
            ("onefold restore a web1 -C x -x", "--one-file-system"),
            ("onefold backup tree", "the archive or the paths are missing"),
        ] {
            let words = line.split_whitespace().map(OsString::from).collect();
            assert!(format!("{:?}", read(words).unwrap_err()).contains(says), "{line}");
        }
    }
}
