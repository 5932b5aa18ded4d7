//! Whoever holds an encrypted archive puts it back as it was, or shows its users two histories: rule 44.

use std::{fs, path::Path, process::Command};

use crate::support::{Desk, noise};

/// An archive with two streams, `a`, and how it was before the second one, `older`.
fn desk() -> Desk {
    let desk = Desk::new();
    fs::write(desk.path("stream"), noise(1, 100_000)).unwrap();
    desk.ok("create archive a --key key");
    desk.ok("put a one stream --key key");
    copy(&desk, "a", "older");
    desk.ok("put a two stream --key key");
    desk
}

/// The directory `to` has the files of the directory `from` and no others.
fn copy(desk: &Desk, from: &str, to: &str) {
    let _ = fs::remove_dir_all(desk.path(to));
    let copied = Command::new("cp").arg("-a").arg(desk.path(from)).arg(desk.path(to)).status();
    assert!(copied.unwrap().success());
    // A server would wait for the one whose claim was copied.
    let _ = fs::remove_file(desk.path(to).join("claim"));
}

fn bytes_of(directory: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let read = |entry: fs::DirEntry| (entry.file_name(), fs::read(entry.path()).unwrap());
    let mut all: Vec<_> = entries.map(read).collect();
    all.sort();
    all
}

/// What another user of the archive says, who has a memory of his own.
fn as_another(desk: &Desk, arguments: &str) -> (bool, String) {
    let mut command = desk.command(arguments);
    let output = command.env("XDG_STATE_HOME", desk.path("another")).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn head(desk: &Desk, archive: &str) -> String {
    desk.status(&format!("{archive} --key key"))["head"].as_str().unwrap().to_owned()
}

#[test]
fn rule_44_an_older_archive_that_is_put_back_is_refused_by_all_verbs() {
    let desk = desk();
    let now = head(&desk, "a");
    assert!(desk.ok("status a --key key").contains(&format!("head           {now}")));
    fs::rename(desk.path("a"), desk.path("newer")).unwrap();
    copy(&desk, "older", "a");
    for verb in [
        "ls a",
        "get a one --output got",
        "status a",
        "check a",
        "snapshots a",
        "put a three stream",
        "backup a older",
        "rm a one",
        "mv a one uno",
        "gc a",
        "scrub a",
        "repair a",
        "upgrade a",
        "volume create a v --size 1M",
        "domain create a customer",
        "key add a --new other",
        "index a --beside-data",
        "serve a",
    ] {
        desk.fails(&format!("{verb} --key key"), 1, &["an older state", "--accept-older"]);
    }
    // No verb has changed anything; the server had claimed it.
    let _ = fs::remove_file(desk.path("a/claim"));
    assert!(bytes_of(&desk.path("a")) == bytes_of(&desk.path("older")));
    // It is refused at any place, and the newer one is taken at any place.
    std::os::unix::fs::symlink(desk.path("older"), desk.path("link")).unwrap();
    for path in ["older", "link"] {
        desk.fails(&format!("ls {path} --key key"), 1, &["an older state"]);
    }
    desk.ok("ls newer --key key");
    // The operator takes it, and then it counts.
    desk.ok("ls a --key key --accept-older");
    desk.ok("put a four stream --key key");
    desk.fails("ls newer --key key", 1, &["its history is not the one", "--accept-older"]);
}

#[test]
fn rule_44_users_who_are_shown_two_histories_find_out_when_one_meets_the_others() {
    let desk = desk();
    // Another user is shown the archive as it was, and goes on with that.
    let (opens, said) = as_another(&desk, "put older other stream --key key");
    assert!(opens, "{said}");
    let (_, said) = as_another(&desk, "status older --key key");
    let now = head(&desk, "a");
    assert!(said.contains("head           4-") && !said.contains(&now) && now.starts_with("4-"));
    desk.fails("ls older --key key", 1, &["its history is not the one"]);
    // Also when the changes in which they differ are behind a snapshot of the tables.
    let (opens, said) = as_another(&desk, "domain create older customer --key key");
    assert!(opens, "{said}");
    assert!(desk.path("older/heads").exists());
    desk.fails("ls older --key key", 1, &["its history is not the one"]);
    let (opens, said) = as_another(&desk, "ls a --key key");
    assert!(!opens && said.contains("--accept-older"), "{said}");
    // Both see the same one after that.
    desk.ok("domain create a customer --key key");
    let (opens, said) = as_another(&desk, "ls a --key key --accept-older");
    assert!(opens, "{said}");
    let (_, said) = as_another(&desk, "status a --key key");
    assert!(said.contains(&head(&desk, "a")), "{said}");
}

#[test]
fn rule_44_a_user_who_comes_seldom_and_one_whose_machine_was_restored_go_on() {
    let desk = desk();
    let (opens, said) = as_another(&desk, "ls a --key key");
    assert!(opens, "{said}");
    copy(&desk, "state", "state.before");
    desk.ok("put a three stream --key key");
    // Its frames are behind a snapshot of the tables then.
    desk.ok("domain create a customer --key key");
    desk.ok("put a four stream --key key");
    let (opens, said) = as_another(&desk, "ls a --key key");
    assert!(opens && said.contains("four"), "{said}");
    copy(&desk, "state.before", "state");
    desk.ok("ls a --key key");
}

#[test]
fn rule_44_the_user_of_a_far_archive_remembers_it_here() {
    let desk = Desk::new().by_ssh("ssh", "exec sh -c \"$last\"");
    let far = format!("ssh://vault{}", desk.path("a").display());
    fs::write(desk.path("stream"), noise(1, 100_000)).unwrap();
    desk.ok(&format!("create archive {far} --key key"));
    desk.ok(&format!("put {far} one stream --key key"));
    copy(&desk, "a", "older");
    desk.ok(&format!("put {far} two stream --key key"));
    copy(&desk, "older", "a");
    for verb in ["ls", "check", "gc"] {
        desk.fails(&format!("{verb} {far} --key key"), 1, &["an older state", "--accept-older"]);
    }
    desk.fails(&format!("put {far} three stream --key key"), 1, &["an older state"]);
    desk.fails("ls a --key key", 1, &["an older state"]);
    desk.ok(&format!("ls {far} --key key --accept-older"));
    desk.ok(&format!("put {far} three stream --key key"));
}

#[test]
fn rule_44_a_server_remembers_what_its_clients_did() {
    let desk = Desk::new();
    desk.ok("create archive a --key key");
    let serving = desk.serve("a --key key");
    desk.ok("volume create a v1 --size 1M");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    desk.ok("volume create a v2 --size 1M");
    copy(&desk, "a", "older");
    desk.ok("volume create a v3 --size 1M");
    serving.terminate();
    copy(&desk, "a", "newer");
    copy(&desk, "older", "a");
    desk.fails("serve a --key key", 1, &["an older state", "--accept-older"]);
    desk.fails("volume list a --key key", 1, &["an older state"]);
    copy(&desk, "newer", "a");
    desk.serve("a --key key").kill();
}

#[test]
fn rule_44_nothing_fails_where_nothing_can_be_remembered_and_a_warning_says_so() {
    let desk = desk();
    for (state, home) in [("/proc/none", "/proc"), ("relative", "relative"), ("", "")] {
        for verb in ["ls older", "put older other stream"] {
            let mut command = desk.command(&format!("{verb} --key key"));
            command.env("XDG_STATE_HOME", state).env("HOME", home);
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{said}");
            assert_eq!(said.matches("it can't be remembered").count(), 1, "{said}");
        }
    }
    // A note that is damaged is none.
    let notes = fs::read_dir(desk.path("state/onefold/encrypted")).unwrap();
    let notes = notes.map(|entry| entry.unwrap().path());
    notes.filter(|path| path.extension().is_some_and(|kind| kind == "head")).for_each(|path| {
        fs::write(path, "4 e26").unwrap();
    });
    desk.ok("ls a --key key");
    desk.fails("ls older --key key", 1, &["its history is not the one"]);
}

#[test]
fn rule_44_of_processes_that_note_at_one_time_the_newest_head_stays() {
    let desk = desk();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let desk = &desk;
            scope.spawn(move || {
                let said = desk.run(&format!("put a s{n} stream --key key"));
                assert!(said.status.success(), "{said:?}");
                (0..5).for_each(|_| assert!(desk.run("ls a --key key").status.success()));
            });
        }
    });
    let noted = fs::read_dir(desk.path("state/onefold/encrypted")).unwrap();
    let noted = noted.map(|entry| entry.unwrap().path());
    let noted = noted.filter(|path| path.extension().is_some_and(|kind| kind == "head"));
    let noted: Vec<String> = noted.map(|path| fs::read_to_string(path).unwrap()).collect();
    let number = |text: &str| text.split([' ', '-']).next().unwrap().to_owned();
    assert_eq!(
        noted.iter().map(|text| number(text)).collect::<Vec<_>>(),
        [number(&head(&desk, "a"))]
    );
}
