//! What people type who know other tools, or this one not yet: it works, or one sentence says what does.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{fs, io::Write, process::Stdio};

use support::Desk;

/// An archive `a` with two snapshots of a set `docs`.
fn stored() -> Desk {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir_all(desk.path("tree/sub")).unwrap();
    fs::write(desk.path("tree/one"), b"one").unwrap();
    fs::write(desk.path("tree/sub/two"), b"two").unwrap();
    desk.ok("backup a tree --set docs --host web1 --as /s --tag nightly,audit");
    desk.ok("backup a tree --set docs --host web1 --as /s --tag nightly --tag other");
    desk
}

#[test]
fn missing_words_are_named_as_they_are_typed() {
    let desk = Desk::new();
    desk.fails("snapshots", 2, &["ARCHIVE is missing: `onefold snapshots ARCHIVE`"]);
    desk.fails("restore a", 2, &["--directory DIR and SNAPSHOT are missing: `onefold restore "]);
    desk.fails("volume create disk", 2, &["NAME is missing"]);
    desk.fails("backup a", 2, &["`onefold backup ARCHIVE PATH…`"]);
}

#[test]
fn addresses_of_other_tools_are_answered_with_ours() {
    let desk = Desk::new();
    for store in ["sftp:host:/srv/a", "s3:bucket", "me@host:/srv/a", "host:a"] {
        desk.fails(&format!("snapshots {store}"), 1, &["ssh://USER@HOST/PATH"]);
        desk.fails(&format!("create archive {store}"), 1, &["ssh://USER@HOST/PATH"]);
        assert_eq!(fs::read_dir(desk.path("")).unwrap().count(), 0, "{store}");
    }
    desk.fails("ls a::docs", 1, &["two words"]);
    // A name may have colons all the same.
    desk.ok("create archive ./host:a");
    desk.ok("snapshots host:a");
}

#[test]
fn sets_and_hosts_that_are_not_there_are_named() {
    let desk = stored();
    for (verb, says) in [
        ("--set doc", "there is no snapshot of a set 'doc': there is 'docs'"),
        ("--host web", "there is no snapshot of host 'web': there is 'web1'"),
        ("--set docs --host web", "of a set 'docs' of host 'web': there is 'web1'"),
    ] {
        desk.fails(&format!("find a one {verb}"), 1, &[says]);
        for (json, out) in [("", ""), ("--json", "[]\n")] {
            let said = desk.run(&format!("snapshots a {verb} {json}"));
            assert!(said.status.success() && said.out == out, "{said:?}");
            assert!(said.err.contains(says) && said.err.lines().count() == 1, "{said:?}");
        }
    }
    let said = desk.run("snapshots a --tag weekly");
    assert!(said.err.contains("no snapshot with the tag 'weekly'"), "{said:?}");
    let said = desk.run("snapshots a --tag weekly --set docs");
    assert!(said.err.ends_with("with the tag 'weekly' of a set 'docs'\n"), "{said:?}");
    assert!(desk.run("snapshots a --forgotten --set docs").err.contains("no forgotten snapshot"));
}

#[test]
fn words_with_commas_between_are_several_tags() {
    let desk = stored();
    let count = |tags: &str| desk.ok(&format!("snapshots a --tag {tags}")).lines().count();
    assert_eq!((count("nightly"), count("audit"), count("audit,nightly")), (2, 1, 1));
    assert_eq!((count("other"), count("nightly,other")), (1, 1));
    assert!(desk.ok("snapshots a --tag audit").contains("  #nightly  #audit"));
    assert!(desk.run("snapshots a --tag audit,other").err.contains("no snapshot"));
    desk.fails("backup a tree --set docs --tag a,", 2, &["--tag"]);
    let kept = desk.ok("forget a --set docs --keep-tag nightly,audit --force -n");
    assert_eq!(kept.lines().filter(|line| line.contains("would go")).count(), 1, "{kept}");
}

#[test]
fn short_options_are_those_of_other_tools() {
    let desk = stored();
    let said = desk.ok("backup a tree --set docs -x -e one -n");
    assert!(said.contains("it would read 1 file of"), "{said}");
    assert_eq!(desk.ok("snapshots a").lines().count(), 2);
    assert!(desk.ok("gc a -n").contains("would free"));
    desk.ok("restore a docs~0 -C out -n --json");
    assert!(!desk.path("out").exists());
}

#[test]
fn a_file_lists_paths_of_a_backup() {
    let desk = stored();
    let tree = desk.path("tree").display().to_string();
    fs::write(desk.path("odd *"), b"odd").unwrap();
    fs::write(desk.path("list"), format!("# paths\n\n{tree}/one\nodd *\n")).unwrap();
    desk.ok("backup a tree/sub --files-from list --set listed");
    let listed = desk.ok("ls a listed");
    for name in ["/tree/one\n", "/odd *\n", "/tree/sub/two\n"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    let mut backup = desk.command("backup a --files-from - --set piped");
    let mut backup = backup.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    backup.stdin.take().unwrap().write_all(b"tree/sub\n").unwrap();
    assert!(backup.wait().unwrap().success());
    assert!(desk.ok("ls a piped").ends_with("/tree/sub/two\n"));

    fs::write(desk.path("none"), b"# nothing\n").unwrap();
    desk.fails("backup a --files-from none", 2, &["none lists no path"]);
    desk.fails("backup a --files-from missing", 1, &["missing can't be read"]);
    fs::write(desk.path("long"), b"x\n".repeat(1 << 20)).unwrap();
    desk.fails("backup a --files-from long", 2, &["more than 1048576 bytes of paths"]);
    let many: String = (0..1100).map(|n| format!("many/{n}\n")).collect();
    fs::create_dir(desk.path("many")).unwrap();
    many.lines().for_each(|path| fs::write(desk.path(path), b"").unwrap());
    fs::write(desk.path("list"), many).unwrap();
    desk.fails(
        "backup a --files-from list --set many",
        2,
        &["1,100 paths are too many", "1024 at"],
    );
}

#[test]
fn what_is_told_of_a_small_archive_can_be_read() {
    let desk = stored();
    let status = desk.ok("status a");
    for says in [
        "set            docs of host web1: 2 snapshots, the newest whole one ",
        "by puts and backups",
        "so that forget, rm and gc work on a full disk",
    ] {
        assert!(status.contains(says), "{says}: {status}");
    }
    assert!(!status.contains("0.00 times"), "{status}");
    let checked = desk.ok("check a");
    assert!(checked.starts_with("looked at: 0 streams, 2 snapshots; "), "{checked}");
    assert!(checked.contains("data was not read: `onefold scrub` does that"), "{checked}");
    assert!(desk.ok("gc a").starts_with("freed nothing: "));
    desk.ok("forget a docs~1");
    let said = desk.ok("gc a");
    assert!(said.contains("in the trash: 1 forgotten snapshot, with "), "{said}");
    let said = desk.ok("gc a --trash 0");
    assert!(said.starts_with("freed "), "{said}");
}
