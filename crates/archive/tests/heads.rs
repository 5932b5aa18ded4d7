//! Clients remember heads of sealed archives, and refuse what does not descend from them.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod golden;
mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use golden::{Form, forms, unpack};
use onefold_archive::{Archive, KeySource, Settings, head_of, upgrade};
use onefold_backend::Directory;
use onefold_core::{Kind, Result};
use onefold_seal::{Head, KeyArea, Mark, Opener, Random, Secret};
use support::{By, put};

/// A client: a memory of its own, a key, and what it calls its streams, so that no two make the same
/// frames.
#[derive(Clone, Default)]
struct Client {
    memory: Arc<Mutex<Option<Head>>>,
    accepts_older: bool,
    name: &'static str,
}

impl Opener for Client {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        By(1, false).root(area)
    }

    fn accepts_older(&self) -> bool {
        self.accepts_older
    }

    fn head_seen(&self, _: &[u8; 16]) -> Option<Head> {
        *self.memory.lock().unwrap()
    }

    fn saw_head(&self, _: &[u8; 16], head: &Head) {
        *self.memory.lock().unwrap() = Some(*head);
    }

    fn random(&self) -> Arc<dyn Random> {
        By(1, false).random()
    }
}

fn named(name: &'static str) -> Client {
    Client { name, ..Client::default() }
}

impl Client {
    fn try_open(&self, at: &Path, writes: bool, log_bytes: u64) -> Result<Arc<Archive>> {
        let settings = Settings {
            log_bytes,
            log_ahead_bytes: 4096,
            ahead_bytes: 0,
            opener: KeySource::new(Arc::new(self.clone())),
            ..Settings::default()
        };
        let files = Arc::new(Directory::open(at, writes).unwrap());
        Archive::open(files, writes, settings).map(Arc::new)
    }

    /// Changes the archive so often.
    fn change(&self, at: &Path, times: u64, log_bytes: u64) {
        let archive = self.try_open(at, true, log_bytes).unwrap();
        for n in 0..times {
            put(&archive, &format!("{}{}", self.name, n % 3), format!("content {n}").as_bytes())
                .unwrap();
        }
    }

    fn visits(&self, at: &Path) {
        self.try_open(at, false, u64::MAX).unwrap();
    }

    #[track_caller]
    fn refuses(&self, at: &Path, says: &str) {
        for writes in [false, true] {
            let error = self.try_open(at, writes, u64::MAX).err().unwrap();
            let text = error.to_string();
            assert!(error.kind() == Kind::Denied && text.contains(says), "{text}");
            assert!(text.contains("--accept-older"), "{text}");
        }
    }

    fn head(&self) -> Head {
        self.memory.lock().unwrap().unwrap()
    }
}

struct Desk(tempfile::TempDir);

impl Desk {
    /// A sealed archive, with heads or without.
    fn new(heads: bool) -> Desk {
        let desk = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        form(heads).create(&desk.at("a"));
        desk
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn copy(&self, from: &str, to: &str) {
        let _ = fs::remove_dir_all(self.at(to));
        fs::create_dir(self.at(to)).unwrap();
        for entry in fs::read_dir(self.at(from)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), self.at(to).join(entry.file_name())).unwrap();
        }
    }
}

fn form(heads: bool) -> Form {
    let is_it = |form: &Form| form.sealed && !form.kinds.domains && form.kinds.heads == heads;
    forms().into_iter().find(is_it).unwrap()
}

#[test]
fn rule_44_an_older_archive_is_refused_with_heads_and_without() {
    for heads in [true, false] {
        let (desk, client) = (Desk::new(heads), named("one"));
        client.change(&desk.at("a"), 2, u64::MAX);
        desk.copy("a", "older");
        for log_bytes in [u64::MAX, 1] {
            client.change(&desk.at("a"), 2, log_bytes);
            client.refuses(&desk.at("older"), "an older state of it was put back");
            client.visits(&desk.at("a"));
        }
        // Nobody else knows.
        Client::default().visits(&desk.at("older"));
        // The operator takes it, and then it counts.
        let accepting = Client { accepts_older: true, ..client.clone() };
        accepting.visits(&desk.at("older"));
        client.change(&desk.at("older"), 1, u64::MAX);
    }
}

#[test]
fn rule_44_a_fork_is_refused_also_when_checkpoints_dropped_the_frames_that_differ() {
    for log_bytes in [u64::MAX, 2000, 1] {
        let (desk, one, other) = (Desk::new(true), named("one"), named("other"));
        one.change(&desk.at("a"), 3, log_bytes);
        desk.copy("a", "fork");
        one.change(&desk.at("a"), 3, log_bytes);
        // Another client is shown the state of before, and goes on with that, further and further.
        for _ in 0..4 {
            other.change(&desk.at("fork"), 3, log_bytes);
            let (seen, there) = (one.head().number, other.head().number);
            let says = if there < seen { "older state" } else { "its history is not the one" };
            one.refuses(&desk.at("fork"), says);
            other.visits(&desk.at("fork"));
        }
        // Each stays with its own; they differ when they compare.
        one.visits(&desk.at("a"));
        other.refuses(&desk.at("a"), "an older state");
        assert_ne!(one.head().to_string(), other.head().to_string());
    }
}

#[test]
fn rule_44_a_client_that_comes_seldom_finds_its_head_after_many_checkpoints() {
    let (desk, often) = (Desk::new(true), named("often"));
    let seldom: Vec<Client> = (0..6)
        .map(|n| {
            often.change(&desk.at("a"), n + 1, [1, 2000, u64::MAX][n as usize % 3]);
            let client = Client::default();
            client.visits(&desk.at("a"));
            client
        })
        .collect();
    often.change(&desk.at("a"), 20, 1);
    for client in &seldom {
        client.visits(&desk.at("a"));
        assert_eq!(client.head(), often.head());
    }
    // Without the file nobody can prove anything, and who has the newest head needs no proof.
    let late = Client::default();
    late.visits(&desk.at("a"));
    often.change(&desk.at("a"), 2, 1);
    fs::write(desk.at("a").join("heads"), [0; 64]).unwrap();
    often.visits(&desk.at("a"));
    late.refuses(&desk.at("a"), "the file `heads` was damaged");
    Client { accepts_older: true, ..late.clone() }.visits(&desk.at("a"));
    late.visits(&desk.at("a"));
    // Who goes on writes the hashes that come.
    often.change(&desk.at("a"), 2, 1);
    late.visits(&desk.at("a"));
}

/// A process that has the archive open looks too, when it reads another snapshot.
#[test]
fn rule_44_a_process_that_has_the_archive_open_takes_no_fork() {
    let (desk, one, other) = (Desk::new(true), named("one"), named("other"));
    one.change(&desk.at("a"), 2, u64::MAX);
    desk.copy("a", "fork");
    one.change(&desk.at("a"), 1, u64::MAX);
    let open = one.try_open(&desk.at("a"), false, u64::MAX).unwrap();
    other.change(&desk.at("fork"), 12, 1);
    for entry in fs::read_dir(desk.at("a")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for entry in fs::read_dir(desk.at("fork")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), desk.at("a").join(entry.file_name())).unwrap();
    }
    let error = open.refresh().err().unwrap();
    assert!(error.to_string().contains("its history is not the one"), "{error}");
}

#[test]
fn rule_44_an_upgrade_begins_to_keep_heads() {
    let (desk, client) = (Desk::new(false), named("one"));
    client.change(&desk.at("a"), 2, u64::MAX);
    let other = client.try_open(&desk.at("a"), false, u64::MAX).unwrap();
    assert!(matches!(head_of(&other.tables()).mark, Mark::Change(_)));
    let early = Client::default();
    early.visits(&desk.at("a"));
    drop(other);
    client.change(&desk.at("a"), 2, u64::MAX);
    desk.copy("a", "older");
    assert!(upgrade(&client.try_open(&desk.at("a"), true, u64::MAX).unwrap()).unwrap());
    client.visits(&desk.at("a"));
    assert!(matches!(client.head().mark, Mark::History(_)));
    early.visits(&desk.at("a"));
    // The archive of before has no heads, so nobody is led back to it.
    client.refuses(&desk.at("older"), "its history is not the one");
    client.change(&desk.at("a"), 5, 1);
    early.visits(&desk.at("a"));
}

#[test]
fn rule_44_a_golden_archive_descends_from_its_own_beginning() {
    for form in forms().into_iter().filter(|form| form.sealed) {
        let desk = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let data = format!("{}/tests/data/{}.zst", env!("CARGO_MANIFEST_DIR"), form.name());
        unpack(&fs::read(data).unwrap(), &desk.at("a"));
        let client = named("new");
        client.visits(&desk.at("a"));
        client.change(&desk.at("a"), 2, 1);
        client.visits(&desk.at("a"));
    }
}
