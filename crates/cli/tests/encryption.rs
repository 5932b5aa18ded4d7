//! Encrypted stores of all three engines by the command: made, opened by each kind of key, and their slots changed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    process::{Command, Stdio},
};

use support::{Desk, noise, qemu_io};

/// The words of the recovery key, which is the last line.
fn recovery(made: &str) -> String {
    made.trim_end().lines().last().unwrap().to_owned()
}

/// Runs a verb with a passphrase or a recovery key on standard input, which is descriptor 0.
fn with_words(desk: &Desk, arguments: &str, words: &str) -> (bool, String) {
    let mut command = desk.command(&format!("{arguments} --passphrase-fd 0"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let _ = input.write_all(format!("{words}\n").as_bytes());
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn whoever_gives_a_passphrase_gets_no_plain_store() {
    let desk = Desk::new();
    for engine in ["archive x", "block x --size 64M", "cluster x"] {
        let line = format!("create {engine} --passphrase-fd 0");
        desk.fails(&line, 2, &["--key passphrase"]);
        assert!(!desk.path("x").exists(), "{line}");
    }
    desk.ok("create archive plain");
    let (opens, said) = with_words(&desk, "ls plain", "correct horse");
    assert!(!opens && said.contains("not encrypted"), "{said}");
}

#[test]
fn rule_23_an_archive_is_encrypted_by_a_key_file_and_opens_by_it_alone() {
    let desk = Desk::new();
    let made = desk.ok("create archive a --key key");
    assert!(made.contains("it is encrypted, which is experimental"), "{made}");
    assert_eq!(fs::metadata(desk.path("key")).unwrap().permissions().mode() & 0o777, 0o600);
    let content = [noise(1, 300_000), b"a canary that sings".repeat(5_000)].concat();
    fs::write(desk.path("stream"), &content).unwrap();
    desk.ok("put a name-of-it stream --key key");
    desk.ok("get a name-of-it --output got --key key");
    assert!(fs::read(desk.path("got")).unwrap() == content);
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/file"), b"a canary in a tree").unwrap();
    desk.ok("backup a tree --set trees --key key");
    desk.ok("check a --key key");
    desk.ok("scrub a --key key");
    desk.ok("gc a --key key");
    let status = desk.ok("status a --json --key key");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["encrypted"], true);
    for entry in fs::read_dir(desk.path("a")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        for canary in [&b"canary"[..], b"name-of-it", b"trees"] {
            assert!(!bytes.windows(canary.len()).any(|part| part == canary), "{}", path.display());
        }
    }
    // Without a key, with another one, and with one that others may read.
    desk.fails("ls a", 1, &["encrypted", "--key"]);
    let other = desk.path("other");
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(other).unwrap();
    file.write_all(&[7; 32]).unwrap();
    desk.fails("ls a --key other", 1, &["opens no slot"]);
    desk.fails("ls a --key missing", 1, &["missing"]);
    fs::set_permissions(desk.path("key"), fs::Permissions::from_mode(0o644)).unwrap();
    desk.fails("ls a --key key", 1, &["chmod 600"]);
    fs::set_permissions(desk.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    // Who names a key is given no plain archive.
    desk.ok("create archive plain");
    desk.fails("ls plain --key key", 1, &["is not encrypted"]);
    assert!(desk.ok("status plain").contains("not encrypted"));
}

#[test]
fn rule_23_a_passphrase_a_program_a_credential_and_paper_open_it_too() {
    let desk = Desk::new();
    let (is_made, made) = with_words(&desk, "create archive a --key passphrase", "correct horse");
    assert!(is_made, "{made}");
    let words = recovery(&made);
    assert!(words.starts_with("onefold1"), "{made}");
    let (opens, said) = with_words(&desk, "key test a", "correct horse");
    assert!(opens && said.contains("slot 0"), "{said}");
    let (opens, said) = with_words(&desk, "ls a", "correct mule");
    assert!(!opens && said.contains("wrong passphrase: it opens no slot"), "{said}");
    let (opens, said) = with_words(&desk, "key test a --key recovery", &words);
    assert!(opens && said.contains("slot 1"), "{said}");
    let (opens, said) = with_words(&desk, "key add a --new key --name second", "correct horse");
    assert!(opens && said.contains("slot 2"), "{said}");
    desk.ok("ls a --key key");
    // A credential, which a service manager would put there.
    fs::create_dir(desk.path("given")).unwrap();
    let id: String = fs::read(desk.path("a/label")).unwrap()[16..32]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    fs::copy(desk.path("key"), desk.path(&format!("given/onefold.{id}"))).unwrap();
    let as_service = |arguments: &str| {
        let mut command = desk.command(arguments);
        let output = command.env("CREDENTIALS_DIRECTORY", desk.path("given")).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (opens, said) = as_service("ls a --key credential");
    assert!(opens, "{said}");
    let (opens, said) = as_service("ls a");
    assert!(opens, "a credential of its id needs no option: {said}");
    fs::rename(desk.path("given"), desk.path("taken")).unwrap();
    let (opens, said) = as_service("ls a");
    assert!(!opens && said.contains("--key"), "there is none: {said}");
    fs::rename(desk.path("taken"), desk.path("given")).unwrap();
    // Whoever gives a service a key means no plain archive, whatever stands in its place.
    desk.ok("create archive plain");
    let (opens, said) = as_service("ls plain");
    assert!(!opens && said.contains("is not encrypted"), "{said}");
    // A program that prints what is in the key file.
    let program = desk.path("kms");
    let script = format!("#!/bin/sh\ncat {}\n", desk.path("key").display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    desk.ok(&format!("ls a --key command:{}", program.display()));
    desk.ok(&format!("key add a --new command:{} --key key", program.display()));
    let listed = desk.ok("key list a --json");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let kinds: Vec<&str> = listed["slots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|slot| slot["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["passphrase", "recovery", "file", "command"]);
    assert_eq!(listed["slots"][2]["name"], "second");
    assert_eq!(listed["id"], id);
    desk.fails("key remove a 9 --key key", 1, &["there is no slot 9"]);
    desk.ok("key remove a 0 --key key");
    let (opens, _) = with_words(&desk, "ls a --key passphrase", "correct horse");
    assert!(!opens, "a removed passphrase opens it");
    desk.ok("key change a 2 --new newer --key key");
    desk.fails("key rotate a --key newer", 1, &["--drop-others"]);
    let said = desk.ok("key rotate a --drop-others --key newer");
    assert!(
        said.contains("recovery, command; the printed recovery key opens it no more"),
        "{said}"
    );
    let (opens, _) = with_words(&desk, "ls a --key recovery", &words);
    assert!(!opens, "a recovery key that was dropped opens it");
    desk.fails("key erase a --key newer", 1, &["--confirm"]);
    let id: String = fs::read(desk.path("a/label")).unwrap()[16..20]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    desk.ok(&format!("key erase a --confirm {id} --key newer"));
    desk.fails("ls a --key newer", 1, &["key area"]);
}

#[test]
fn rule_24_the_data_key_of_an_archive_changes_and_the_older_one_goes() {
    let desk = Desk::new();
    desk.ok("create archive a --key key");
    fs::write(desk.path("stream"), noise(1, 3_000_000)).unwrap();
    desk.ok("put a before stream --key key");
    let said = desk.ok("gc a --reseal --key key");
    assert!(said.contains("nothing is under an older data key"), "{said}");
    let server = desk.serve("a --key key");
    desk.fails("key rotate a --data --key key", 1, &["a server", "works on the archive"]);
    assert!(server.terminate().0.success());
    desk.fails("key rotate a --data --domain missing --key key", 1, &["no domain 'missing'"]);
    desk.fails("key rotate a --data --drop-others --key key", 2, &["--drop-others"]);
    desk.fails("key rotate a --domain x --key key", 2, &["--data"]);
    let said = desk.ok("key rotate a --data --key key");
    assert!(said.contains("gc a --reseal"), "{said}");
    desk.fails("key rotate a --data --key key", 1, &["two data keys", "gc --reseal"]);
    assert!(desk.ok("key list a --key key").contains("domain 0 has two data keys"));
    assert!(desk.ok("status a --key key").contains("domain 0 has two"));
    let status: serde_json::Value =
        serde_json::from_str(&desk.ok("status a --json --key key")).unwrap();
    assert!(status["older_data_keys"][0]["containers"].as_u64().unwrap() > 0, "{status}");
    desk.ok("put a after stream --key key");
    let said = desk.ok("gc a --reseal --key key");
    assert!(said.contains("by the newest data key"), "{said}");
    assert!(said.contains("erased 1 older data key"), "{said}");
    assert!(!desk.ok("key list a --key key").contains("two data keys"));
    for name in ["before", "after"] {
        desk.ok(&format!("get a {name} --output got-{name} --key key"));
        assert!(fs::read(desk.path(&format!("got-{name}"))).unwrap() == noise(1, 3_000_000));
    }
    desk.ok("check a --key key");
    desk.ok("scrub a --key key");
}

#[test]
fn rule_34_an_archive_pads_its_containers_when_it_is_asked_to() {
    let desk = Desk::new();
    desk.fails("create archive a --pad", 2, &["only containers of an encrypted archive", "--key"]);
    desk.fails("create archive a --pad --no-encryption", 2, &["--no-encryption"]);
    assert!(!desk.path("a").exists());
    desk.ok("create archive a --pad --compress none --key key");
    desk.ok("create archive b --compress none --key key");
    fs::write(desk.path("stream"), noise(1, 2_900_000)).unwrap();
    let stored = |archive: &str| {
        desk.ok(&format!("put {archive} s stream --key key"));
        let status = desk.ok(&format!("status {archive} --json --key key"));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        (status["pads"].as_bool().unwrap(), status["stored_bytes"].as_u64().unwrap())
    };
    let (padded, plain) = (stored("a"), stored("b"));
    assert!(padded.0 && !plain.0);
    assert!(plain.1 < padded.1 && padded.1 < plain.1 / 16 * 17, "{padded:?} {plain:?}");
    assert!(desk.ok("status a --key key").contains("padded to few lengths"));
    assert!(!desk.ok("status b --key key").contains("padded"));
    desk.ok("get a s --output got --key key");
    assert!(fs::read(desk.path("got")).unwrap() == noise(1, 2_900_000));
    for verb in ["check", "scrub", "gc"] {
        desk.ok(&format!("{verb} a --key key"));
    }
}

#[test]
fn rule_24_no_file_changed_silently_because_the_data_key_changed() {
    let desk = Desk::new();
    desk.ok("create archive a --key key");
    // Sources are older than what was built of them.
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/verbs");
    let again = || {
        let said = desk.ok(&format!("backup a {sources} --set s --read-all --json --key key"));
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(report["files_read"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(report["silent_changes"].as_u64(), Some(0), "{report}");
        report["new_bytes"].as_u64().unwrap()
    };
    let all = again();
    desk.ok("key rotate a --data --key key");
    // What is the same is not stored again.
    assert!(all > 0);
    assert_eq!([again(), again()], [0, 0]);
    // What is named by older fingerprints is compared, too, when its key is gone.
    desk.ok("gc a --reseal --key key");
    desk.ok("key rotate a --data --key key");
    desk.ok("gc a --reseal --key key");
    assert_eq!(again(), 0);
}

/// Puts an archive in its place of which a program of before made a copy: for each file a line with its name, one with
/// its length, and its bytes.
fn unpack(packed: &[u8], to: &std::path::Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    let all = zstd::decode_all(packed).unwrap();
    let mut rest = &all[..];
    while !rest.is_empty() {
        let mut words = rest.splitn(3, |byte| *byte == b'\n');
        let [name, bytes] = [words.next(), words.next()].map(|word| word.unwrap().to_vec());
        let bytes: usize = String::from_utf8(bytes).unwrap().parse().unwrap();
        let behind = words.next().unwrap();
        let path = to.join(String::from_utf8(name).unwrap());
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
        file.write_all(&behind[..bytes]).unwrap();
        rest = &behind[bytes..];
    }
}

#[test]
fn rule_50_an_archive_of_the_form_that_was_given_up_is_refused_by_each_verb() {
    let desk = Desk::new();
    let packed = include_bytes!("../../archive/tests/data/given-up-bit-8.zst");
    unpack(packed, &desk.path("a"));
    let mut key = fs::OpenOptions::new();
    let mut key = key.write(true).create_new(true).mode(0o600).open(desk.path("key")).unwrap();
    key.write_all(&[1; 32]).unwrap();
    fs::write(desk.path("stream"), b"a stream").unwrap();
    let contents = || {
        let all = fs::read_dir(desk.path("a")).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = all.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        all.sort();
        all
    };
    let before = contents();
    for verb in [
        "ls a",
        "get a last --output got",
        "check a",
        "scrub a",
        "put a x stream",
        "gc a",
        "upgrade a",
        "key rotate a --data",
        "domain list a",
        "volume list a",
    ] {
        desk.fails(&format!("{verb} --key key"), 1, &["given up (feature 8)", "a new archive"]);
    }
    assert!(contents() == before, "nothing is written");
}

#[test]
fn rule_24_what_can_not_change_its_data_key_says_so() {
    let desk = Desk::new();
    desk.ok("create archive plain");
    desk.fails("key rotate plain --data", 1, &["not encrypted"]);
    desk.ok("create archive r --roles --key key");
    desk.fails("key rotate r --data --key key", 1, &["roles"]);
    desk.ok("create cluster c --key cluster-key");
    let said = ["a store of the cluster engine", "can't be changed yet"];
    desk.fails("key rotate c --data --key cluster-key", 1, &said);
}

#[test]
fn rule_24_a_block_store_changes_its_data_key() {
    let desk = Desk::new();
    desk.ok("create block s --size 64M --key key");
    desk.ok("volume create s v --size 1M --key key");
    let write = |pattern: &str| {
        let server = desk.serve("s --key key");
        qemu_io(&desk.uri("s", "v"), &[pattern, "flush"]);
        assert!(server.terminate().0.success());
    };
    write("write -P 5 0 64k");
    desk.fails("key rotate s --data --domain x --key key", 1, &["no domain 'x'"]);
    desk.fails("key rotate s --data --finish --key key", 1, &["one data key"]);
    let said = desk.ok("key rotate s --data --key key");
    assert!(said.contains("new data key") && said.contains("--finish"), "{said}");
    for list in ["key list s --key key", "domain list s --key key"] {
        let said = desk.ok(list);
        assert!(said.contains("two data keys"), "{said}");
    }
    desk.fails("key rotate s --data --key key", 1, &["two data keys", "--finish"]);
    write("write -P 6 64k 64k");
    desk.ok("check s --key key");
    desk.ok("scrub s --key key");
    let said = desk.ok("key rotate s --data --finish --key key");
    assert!(
        said.contains("one data key") && said.contains("what is free was overwritten"),
        "{said}"
    );
    write("read -P 5 0 64k");
    write("read -P 6 64k 64k");
    desk.ok("check s --key key");
    desk.ok("scrub s --key key");
    desk.ok("key add s --new other --key key");
    let said = desk.ok("key rotate s --data --key key");
    assert!(said.contains("2 other slots can open the new one, too"), "{said}");
    desk.ok("key rotate s --data --finish --key key");
    write("read -P 5 0 64k");
}

#[test]
fn rule_26_the_keys_of_a_served_archive_are_not_erased() {
    let desk = Desk::new();
    desk.ok("create archive a --key key");
    desk.ok("volume create a v --size 1M --key key");
    let said = desk.fails("key erase a --key key", 1, &["--confirm"]);
    let id = said.err.split("--confirm ").nth(1).unwrap().trim().to_owned();
    let server = desk.serve("a --key key");
    let erase = format!("key erase a --confirm {id} --key key");
    desk.fails(&erase, 1, &["a server", "works on the archive"]);
    qemu_io(&desk.uri("a", "v"), &["write -P 5 0 64k", "flush"]);
    assert!(server.terminate().0.success());
    desk.ok("check a --key key");
    desk.ok(&erase);
}

#[test]
fn rule_23_what_can_not_be_encrypted_says_so() {
    let desk = Desk::new();
    desk.fails("create archive a --nodes n0,n1,n2 --code 3,2 --key key", 1, &["several nodes"]);
    desk.fails("create archive b --chunking rabin:8K --key key", 1, &["Rabin"]);
    desk.fails("create archive c --no-encryption --key key", 2, &["--no-encryption"]);
    assert!(desk.ok("create archive d").contains("it is not encrypted"));
    desk.fails("key list d", 1, &["not encrypted"]);
}

#[test]
fn rule_23_a_block_store_is_encrypted_by_a_key_file_and_opens_by_it_alone() {
    let desk = Desk::new();
    let made = desk.ok("create block s --size 64M --key key");
    assert!(made.contains("it is encrypted, which is experimental"), "{made}");
    let words = recovery(&made);
    desk.ok("volume create s a-name-of-it --size 8M --key key");
    let content = [noise(1, 300_000), b"a canary that sings".repeat(5_000)].concat();
    let mut content = content;
    content.resize(content.len().next_multiple_of(4096), 0);
    fs::write(desk.path("image"), &content).unwrap();
    desk.ok("import s second image --key key");
    desk.ok("export s second out --key key");
    assert!(fs::read(desk.path("out")).unwrap() == content);
    desk.ok("snapshot create s second@monday --key key");
    desk.ok("check s --key key");
    desk.ok("scrub s --key key");
    let status = desk.ok("status s --json --key key");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["encrypted"], true);
    let bytes = fs::read(desk.path("s")).unwrap();
    for canary in [&b"canary"[..], b"name-of-it", b"monday"] {
        assert!(!bytes.windows(canary.len()).any(|part| part == canary));
    }
    desk.fails("status s", 1, &["encrypted", "--key"]);
    desk.fails("check s", 1, &["encrypted", "--key"]);
    desk.ok("key list s");
    desk.ok("key test s --key key");
    let (opens, said) = with_words(&desk, "key test s --key recovery", &words);
    assert!(opens && said.contains("slot 1"), "{said}");
    desk.ok("key add s --new second --key key");
    desk.ok("key remove s 0 --key second");
    desk.fails("status s --key key", 1, &["opens no slot"]);
    desk.ok("check s --key second");
    desk.ok("key change s 2 --new third --key second");
    desk.ok("key rotate s --drop-others --key third");
    let (opens, _) = with_words(&desk, "key test s --key recovery", &words);
    assert!(!opens, "a recovery key that was dropped opens it");
    desk.fails("key erase s --key third", 1, &["--confirm"]);
    let id: String = bytes[24..28].iter().map(|byte| format!("{byte:02x}")).collect();
    desk.ok(&format!("key erase s --confirm {id} --key third"));
    desk.fails("status s --key third", 1, &["key area"]);
    // Who names a key is given no plain store.
    assert!(desk.ok("create block plain --size 64M").contains("it is not encrypted"));
    desk.fails("status plain --key second", 1, &["is not encrypted"]);
    assert!(desk.ok("status plain").contains("not encrypted"));
}

/// A command whose answer goes to a disk that is full, or to nobody.
fn unheard(desk: &Desk, arguments: &str) -> String {
    let mut command = desk.command(arguments);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = command.stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{arguments}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let said = String::from_utf8(ended.stderr).unwrap();
    let ended = desk.command(arguments).stdout(writer).output().unwrap();
    assert_ne!(ended.status.code(), Some(0), "{arguments}");
    said
}

#[test]
fn rule_23_no_secret_goes_before_its_successor_was_shown() {
    let desk = Desk::new();
    desk.ok("create archive a --key key");
    desk.ok("key remove a 1 --key key");
    let said = unheard(&desk, "key change a 0 --new recovery --key key");
    assert!(said.contains("slot 0 is still there, and slot 1 is new"), "{said}");
    desk.ok("ls a --key key");
    // Each of the two calls left the slot that nobody knows.
    desk.ok("key remove a 1 --key key");
    desk.ok("key remove a 2 --key key");
    let words = recovery(&desk.ok("key change a 0 --new recovery --key key"));
    desk.fails("ls a --key key", 1, &["opens no slot"]);
    let (opens, said) = with_words(&desk, "key change a 1 --new key2 --key recovery", &words);
    assert!(opens, "{said}");
    let (opens, _) = with_words(&desk, "ls a --key recovery", &words);
    assert!(!opens, "a replaced recovery key opens it");
    let said = unheard(&desk, "create block s --size 64M --key key");
    assert!(said.contains("nobody has its recovery key"), "{said}");
    desk.ok("status s --key key");
}

#[test]
fn a_change_of_keys_that_was_cut_off_is_no_damage_of_a_block_store() {
    let desk = Desk::new();
    desk.ok("create block s --size 64M --key key");
    let before = fs::read(desk.path("s")).unwrap();
    desk.ok("key add s --new second --key key");
    let after = fs::read(desk.path("s")).unwrap();
    // One of the two superblocks is as before: that which was to be written second, or the first.
    let whole = [0, 8].map(|block| {
        let bytes = block * 4096..(block + 1) * 4096;
        let mut cut = after.clone();
        cut[bytes.clone()].copy_from_slice(&before[bytes]);
        fs::write(desk.path("s"), cut).unwrap();
        // This user saw the whole change.
        let _ = fs::remove_dir_all(desk.path("state"));
        let checked = desk.run("check s --key second");
        let said = checked.out.contains("from before the last change of keys");
        assert_eq!(said, checked.status.success(), "{checked:?}");
        said
    });
    assert_eq!(whole.iter().filter(|whole| **whole).count(), 1);
}

#[test]
fn rule_22_a_list_with_a_key_refuses_an_older_key_area() {
    let desk = Desk::new();
    desk.ok("create archive a --key key");
    let before = fs::read(desk.path("a/keys")).unwrap();
    desk.ok("key remove a 1 --key key");
    assert_eq!(desk.ok("key list a --key key").matches("recovery").count(), 0);
    fs::write(desk.path("a/keys"), &before).unwrap();
    desk.fails("key list a --key key", 1, &["older"]);
    assert!(desk.ok("key list a").contains("not proven"));
    // Only the server of a block store knows how old its keys are.
    desk.ok("create block s --size 64M --key key");
    let server = desk.serve("s --key key");
    assert!(desk.ok("key list s --key key").contains("proven, but perhaps older"));
    assert!(server.terminate().0.success());
    assert!(!desk.ok("key list s --key key").contains("proven"));
}

#[test]
fn rule_31_block_stores_that_can_not_be_encrypted_say_so() {
    let desk = Desk::new();
    desk.fails("create block a --size 64M --scheme ordermerge --key key", 1, &["another scheme"]);
    desk.fails("create block a --size 64M --scheme ordered --key key", 1, &["another scheme"]);
    desk.fails("create block a --size 64M --leftover table --key key", 1, &["--leftover log"]);
    desk.fails(
        "create block a --size 64M --fingerprint md5 --verify bytes --key key",
        1,
        &["sha1 and md5"],
    );
    desk.ok("create block e --size 64M --key key");
    desk.fails("create block f --size 64M --like e", 1, &["it is encrypted"]);
    desk.fails("create block g --size 64M --no-encryption --key key", 2, &["--no-encryption"]);
    assert!(!desk.path("a").exists() && !desk.path("g").exists());
}

/// Which stores are remembered as encrypted. Beside them are heads of archives, and their lock.
fn remembered(desk: &Desk) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(desk.path("state/onefold/encrypted")).unwrap();
    let all = entries.map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_none()).collect()
}

#[test]
fn rule_22_a_plain_store_is_refused_where_an_encrypted_one_was_also_without_a_key() {
    let desk = Desk::new();
    desk.ok("create block s --size 64M --key key");
    desk.ok("create archive a --key key");
    desk.ok("create block other --size 64M");
    desk.ok("create archive plain");
    desk.ok("volume create s v --size 8M --key key");
    desk.ok("ls a --key key");
    assert_eq!(remembered(&desk).len(), 2);
    // Somebody who writes the medium, but has no key, makes plain ones of them.
    fs::rename(desk.path("s"), desk.path("kept")).unwrap();
    fs::copy(desk.path("other"), desk.path("s")).unwrap();
    fs::rename(desk.path("a"), desk.path("kept-a")).unwrap();
    assert!(
        Command::new("cp")
            .args(["-a", "plain", "a"])
            .current_dir(desk.path(""))
            .status()
            .unwrap()
            .success()
    );
    for verb in ["volume create s v --size 8M", "status s", "ls a", "put a x key", "gc a"] {
        desk.fails(verb, 1, &["is not encrypted", "somebody may have replaced it", "remove "]);
    }
    desk.ok("status other");
    desk.ok("ls plain");
    // The label of the archive alone, beside which its keys lie: also where nothing is remembered.
    fs::copy(desk.path("plain/label"), desk.path("kept-a/label")).unwrap();
    desk.fails("ls kept-a", 1, &["is not encrypted", "`keys`"]);
    desk.fails("put kept-a x key", 1, &["is not encrypted", "`keys`"]);
    // The operator says that it is meant.
    for file in remembered(&desk) {
        fs::remove_file(file).unwrap();
    }
    desk.ok("status s");
    desk.ok("ls a");
    // So says who makes another one.
    desk.ok("status kept --key key");
    assert_eq!(remembered(&desk).len(), 1);
    fs::remove_file(desk.path("kept")).unwrap();
    desk.ok("create block kept --size 64M");
    desk.ok("status kept");
    assert!(remembered(&desk).is_empty());
}

#[test]
fn rule_23_a_program_that_others_can_change_gives_no_key() {
    let desk = Desk::new();
    let program = desk.path("kms");
    desk.ok("create archive a --key key");
    fs::write(&program, format!("#!/bin/sh\ncat {}\n", desk.path("key").display())).unwrap();
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let verb = format!("ls a --key command:{}", program.display());
    for bad in [0o770, 0o707] {
        mode(&program, bad);
        desk.fails(&verb, 1, &["kms", "others may write"]);
    }
    mode(&program, 0o755);
    mode(&desk.path(""), 0o777);
    desk.fails(&verb, 1, &["the program that gives a key", "others may write"]);
    mode(&desk.path(""), 0o700);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&program, Some(65_534), None).unwrap();
        desk.fails(&verb, 1, &["kms", "another user"]);
        std::os::unix::fs::chown(&program, Some(0), None).unwrap();
    }
}

/// Whoever holds the directory of a store can also put a link there.
#[test]
fn rule_22_a_plain_store_is_refused_behind_a_link_in_the_place_of_an_encrypted_one() {
    let desk = Desk::new();
    fs::create_dir_all(desk.path("evil")).unwrap();
    fs::create_dir_all(desk.path("by")).unwrap();
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, desk.path(at)).unwrap();
    link("../s", "by/s");
    desk.ok("create block s --size 64M --key key");
    desk.ok("create archive a --key key");
    desk.ok("create block evil/s --size 64M");
    desk.ok("create archive evil/a");
    desk.ok("volume list by/s --key key");
    for name in ["s", "a"] {
        fs::rename(desk.path(name), desk.path(&format!("kept-{name}"))).unwrap();
        link(&format!("evil/{name}"), name);
    }
    let all =
        ["volume create s v --size 8M", "status s", "volume list by/s", "ls a", "put a x key"];
    let refused = || {
        for verb in all {
            desk.fails(verb, 1, &["is not encrypted", "somebody may have replaced it", "remove "]);
        }
    };
    refused();
    desk.ok("status evil/s");
    // Ten thousand other stores hide nothing.
    for n in 0..10_100 {
        let name = format!("state/onefold/encrypted/{n:064}-{n:032}");
        fs::write(desk.path(&name), "elsewhere\n").unwrap();
    }
    refused();
    // The newest state is known by the path by which it was reached.
    for name in ["s", "a"] {
        fs::remove_file(desk.path(name)).unwrap();
        fs::rename(desk.path(&format!("kept-{name}")), desk.path(name)).unwrap();
    }
    fs::copy(desk.path("s"), desk.path("older")).unwrap();
    desk.ok("volume create s v --size 8M --key key");
    fs::rename(desk.path("s"), desk.path("kept-s")).unwrap();
    link("older", "s");
    desk.fails("volume list s --key key", 1, &["older", "--accept-older"]);
    fs::remove_file(desk.path("s")).unwrap();
    fs::rename(desk.path("kept-s"), desk.path("s")).unwrap();
    desk.ok("volume list s --key key");
    desk.ok("volume create by/s w --size 8M --key key");
    desk.ok("volume list s --key key");
}

#[test]
fn rule_22_an_opening_does_not_fail_where_nothing_can_be_remembered() {
    let desk = Desk::new();
    desk.ok("create block s --size 64M --key key");
    for state in ["/proc/none", "relative", ""] {
        let mut command = desk.command("status s --key key");
        let output = command.env("XDG_STATE_HOME", state).env("HOME", "/proc").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::remove_dir_all(desk.path("state")).unwrap();
    fs::write(desk.path("state"), "a file").unwrap();
    desk.ok("status s --key key");
}

#[test]
fn rule_23_no_program_gets_the_descriptor_of_the_passphrase() {
    let desk = Desk::new();
    let (is_made, made) = with_words(&desk, "create archive a --key passphrase", "correct horse");
    assert!(is_made, "{made}");
    // A program that gives a key, and tells what it was given.
    let script = |name: &str, text: &str| {
        fs::write(desk.path(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(desk.path(name), fs::Permissions::from_mode(0o700)).unwrap();
        desk.path(name).display().to_string()
    };
    let seen = desk.path("seen").display().to_string();
    let kms = script(
        "kms",
        &format!(
            "for fd in /proc/$$/fd/*; do echo \"$fd\" >> {seen}; done; env >> {seen}; printf '%032d' 7"
        ),
    );
    fs::write(desk.path("words"), "correct horse\n").unwrap();
    let command = desk.command("");
    let onefold = command.get_program().to_str().unwrap().to_owned();
    let run = script(
        "run",
        &format!(
            "exec {onefold} key add a --new command:{kms} --key passphrase --passphrase-fd 7 7<words"
        ),
    );
    let mut through = Command::new(run);
    through.current_dir(desk.path("")).env("XDG_STATE_HOME", desk.path("state"));
    let output = through.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = fs::read_to_string(desk.path("seen")).unwrap();
    assert!(told.contains("/fd/0") && !told.contains("/fd/7"), "{told}");
    assert!(!told.contains("XDG_STATE_HOME"), "{told}");
    // Nor does it depend on where the command is started which program it is.
    desk.fails("ls a --key command:kms", 1, &["whole path"]);
    desk.fails("ls a --key passphrase --passphrase-fd 9", 1, &["descriptor 9"]);
}

/// Runs a verb at a terminal, where these words are typed, each behind its prompt; gives what the terminal
/// showed, and whether the verb succeeded. `None` where `script`, which makes terminals, is not installed.
fn at_terminal(desk: &Desk, arguments: &str, typed: &[(&str, &str)]) -> Option<(bool, String)> {
    let command = desk.command(arguments);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &words.join(" "), "/dev/null"]);
    script.current_dir(desk.path("")).env("RUNTIME_DIRECTORY", desk.runtime());
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().ok()?;
    // A prompt that does not come ends with the program, after a minute.
    let id = child.id().to_string();
    let (over, ended) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let wait = std::time::Duration::from_secs(60);
        if ended.recv_timeout(wait) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-KILL", &id]).status();
        }
    });
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut seen) = (Vec::new(), 0);
    let mut byte = [0];
    for (prompt, words) in typed {
        while !shown[seen..].ends_with(prompt.as_bytes()) {
            assert!(output.read(&mut byte).unwrap() > 0, "{}", String::from_utf8_lossy(&shown));
            shown.push(byte[0]);
        }
        seen = shown.len();
        // The prompt is there a moment before the terminal shows nothing any more: no person types as fast.
        std::thread::sleep(std::time::Duration::from_millis(500));
        input.write_all(format!("{words}\n").as_bytes()).unwrap();
    }
    output.read_to_end(&mut shown).unwrap();
    drop(input);
    let is_done = child.wait().unwrap().success();
    drop(over);
    watch.join().unwrap();
    Some((is_done, String::from_utf8(shown).unwrap()))
}

#[test]
fn rule_35_somebody_at_a_terminal_is_asked_for_a_passphrase() {
    let desk = Desk::new();
    let (first, again) = ("(empty for none): ", "the same again: ");
    let typed = [(first, "correct horse"), (again, "correct horse")];
    let Some((is_made, shown)) = at_terminal(&desk, "create archive a", &typed) else { return };
    assert!(is_made && shown.contains("it is encrypted") && shown.contains("onefold1"), "{shown}");
    assert!(!shown.contains("correct horse"), "nobody sees what is typed");
    let (opens, shown) =
        at_terminal(&desk, "ls a", &[("passphrase of a: ", "correct horse")]).unwrap();
    assert!(opens && !shown.contains("horse"), "{shown}");
    let (opens, shown) = at_terminal(&desk, "ls a", &[("passphrase of a: ", "wrong")]).unwrap();
    assert!(
        !opens && shown.contains("opens no slot") && shown.contains("--key recovery"),
        "{shown}"
    );
    let typed = [(first, "one"), (again, "another")];
    let (is_made, shown) = at_terminal(&desk, "create archive b", &typed).unwrap();
    assert!(!is_made && shown.contains("differ") && !desk.path("b").exists(), "{shown}");
    // Nothing typed makes a plain one, and says so; and so does the word, without a question.
    let (is_made, shown) = at_terminal(&desk, "create archive b", &[(first, "")]).unwrap();
    assert!(is_made && shown.contains("not encrypted"), "{shown}");
    let (is_made, shown) = at_terminal(&desk, "create archive c --no-encryption", &[]).unwrap();
    assert!(is_made && shown.contains("not encrypted"), "{shown}");
}

#[test]
fn rule_35_what_is_on_paper_brings_everything_back() {
    let desk = Desk::new();
    let made = desk.ok("create archive a --key key");
    let paper = recovery(&made);
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/letter"), noise(3, 100_000)).unwrap();
    desk.ok("backup a tree --set home --key key");
    fs::write(desk.path("stream"), noise(4, 200_000)).unwrap();
    desk.ok("put a stream stream --key key");
    // The machine is gone, and with it the key file. What is left is the archive, and the paper.
    fs::rename(desk.path("a"), desk.path("rescued")).unwrap();
    fs::remove_file(desk.path("key")).unwrap();
    desk.fails("ls rescued --key key", 1, &["key", "--key recovery"]);
    let (_, said) = with_words(&desk, "ls rescued --key recovery", "onefold1qqqqqq-qqqqqq");
    assert!(said.contains("wrong letter"), "{said}");
    // As somebody may type it.
    let typed = paper.to_uppercase().replace('-', " ");
    let (_, said) = with_words(&desk, "restore rescued home -C back --key recovery", &typed);
    // It lies below the path that it had.
    let whole = desk.path("tree/letter");
    let below = whole.strip_prefix("/").unwrap();
    let found = fs::read(desk.path("back").join(below));
    assert!(found.is_ok_and(|bytes| bytes == noise(3, 100_000)), "{said}");
    let (is_there, said) =
        with_words(&desk, "get rescued stream --output got --key recovery", &paper);
    assert!(is_there && fs::read(desk.path("got")).unwrap() == noise(4, 200_000), "{said}");
    // A new key for the new machine, and the old one opens nothing any more.
    let (is_added, said) = with_words(&desk, "key add rescued --new new --key recovery", &paper);
    assert!(is_added, "{said}");
    desk.ok("key remove rescued 0 --key new");
    desk.ok("backup rescued tree --set home --key new");
    desk.ok("check rescued --key new");
}

/// True when a file of a folder has these bytes.
fn is_in(folder: &std::path::Path, canary: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        bytes.windows(canary.len()).any(|part| part == canary)
    })
}

#[test]
fn rule_52_what_was_compressed_is_encrypted_too() {
    // Half of each block is noise, which a compressor leaves as it is: who looks for it finds it in a
    // compressed payload.
    let half = |n: u64| [noise(n + 1, 2048), vec![n as u8; 2048]].concat();
    let content: Vec<u8> = (0..64).flat_map(half).collect();
    let canaries: Vec<&[u8]> = content.chunks(4096).map(|block| &block[1000..1032]).collect();
    for key in ["", " --key key"] {
        let desk = Desk::new();
        fs::write(desk.path("content"), &content).unwrap();
        fs::create_dir(desk.path("stores")).unwrap();
        for create in ["archive stores/a", "block stores/b --size 64M", "cluster stores/c"] {
            desk.ok(&format!("create {create}{key}"));
        }
        let mut told = desk.ok(&format!("put stores/a s content --json{key}"));
        told += &desk.ok(&format!("import stores/b v content --json{key}"));
        told += &desk.ok(&format!("put stores/c s content --json{key}"));
        for (store, stored) in [("stores/a", "s"), ("stores/b", "v"), ("stores/c", "s")] {
            let is_block = store == "stores/b";
            let get = if is_block { "export" } else { "get" };
            let to = if is_block { "out" } else { "--output out" };
            desk.ok(&format!("{get} {store} {stored} {to}{key}"));
            assert!(fs::read(desk.path("out")).unwrap() == content);
            fs::remove_file(desk.path("out")).unwrap();
            told += &desk.ok(&format!("status {store} --json{key}"));
            told += &desk.ok(&format!("check {store} --json{key}"));
        }
        // Of the block store, what is not empty.
        let blocks = fs::read(desk.path("stores/b")).unwrap();
        let blocks: Vec<&[u8]> =
            blocks.chunks(4096).filter(|b| b.iter().any(|&b| b != 0)).collect();
        let shown = |canary: &[u8]| {
            let [archive, cluster] =
                ["stores/a", "stores/c"].map(|at| is_in(&desk.path(at), canary));
            let in_block = |block: &&[u8]| block.windows(canary.len()).any(|part| part == canary);
            [archive, blocks.iter().any(in_block), cluster]
        };
        for canary in canaries.iter().step_by(9) {
            assert_eq!(shown(canary), [key.is_empty(); 3], "{key}");
            assert!(!told.as_bytes().windows(32).any(|part| part == *canary));
        }
        // What was compressed is not there whole.
        let whole = content.chunks(4096).filter(|block| blocks.contains(block)).count();
        assert!(whole < if key.is_empty() { 64 } else { 1 } && !shown(&content[..4096])[0]);
    }
}

#[test]
fn rule_23_a_cluster_store_is_encrypted_by_a_key_file_and_opens_by_it_alone() {
    let desk = Desk::new();
    let made = desk.ok("create cluster s --key key");
    assert!(made.contains("it is encrypted, which is experimental"), "{made}");
    let words = recovery(&made);
    let content = [noise(1, 300_000), b"a canary that sings".repeat(5_000)].concat();
    fs::write(desk.path("stream"), &content).unwrap();
    desk.ok("put s name-of-it stream --key key");
    desk.ok("volume create s another-name --size 8M --key key");
    let serving = desk.serve("s --cold 0 --workers 1 --key key");
    let data = desk.path("stream").display().to_string();
    qemu_io(
        &desk.uri("s", "another-name"),
        &[&format!("write -s {data} 0 256k"), "write -P 0x22 1M 5000", "discard 64k 64k"],
    );
    serving.kill();
    let serving = desk.serve("s --cold 0 --key key");
    qemu_io(&desk.uri("s", "another-name"), &["read -P 0x22 1M 5000", "read -P 0 64k 64k"]);
    serving.terminate();
    desk.ok("worker s --once --cold 0 --key key");
    desk.ok("get s name-of-it --output got --key key");
    assert!(fs::read(desk.path("got")).unwrap() == content);
    desk.ok("mv s name-of-it new-name-of-it --key key");
    for verb in ["check s", "scrub s", "repair s", "ls s", "volume list s"] {
        desk.ok(&format!("{verb} --key key"));
    }
    let status = desk.ok("status s --json --key key");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["encrypted"], true);
    assert!(desk.ok("status s --key key").contains("encrypted (experimental)"));
    for canary in [&b"canary"[..], b"name-of-it", b"another-name"] {
        assert!(!is_in(&desk.path("s"), canary));
    }
    for verb in ["ls s", "status s", "check s", "serve s", "put s x stream"] {
        desk.fails(verb, 1, &["encrypted", "--key"]);
    }
    // Key areas in the file with the data, also in blocks that nothing uses any more.
    let areas = || {
        let data = fs::read(desk.path("s/data")).unwrap();
        data.chunks(4096).filter(|block| block.starts_with(b"ONEFKEYS")).count()
    };
    assert_eq!(areas(), 2);
    desk.ok("key list s");
    desk.ok("key test s --key key");
    let (opens, said) = with_words(&desk, "key test s --key recovery", &words);
    assert!(opens && said.contains("slot 1"), "{said}");
    desk.ok("key add s --new second --key key");
    desk.ok("key remove s 0 --key second");
    assert_eq!(areas(), 2, "what the removed slot opens is left");
    desk.fails("status s --key key", 1, &["opens no slot"]);
    desk.ok("check s --key second");
    desk.ok("key change s 2 --new third --key second");
    desk.ok("key rotate s --drop-others --key third");
    let (opens, _) = with_words(&desk, "key test s --key recovery", &words);
    assert!(!opens, "a recovery key that was dropped opens it");
    let said = desk.fails("key erase s --key third", 1, &["--confirm"]);
    let id = said.err.split("--confirm ").nth(1).unwrap().trim().to_owned();
    desk.ok(&format!("key erase s --confirm {id} --key third"));
    assert_eq!(areas(), 0, "the keys are not erased");
    desk.fails("status s --key third", 1, &["key area"]);
    // Who names a key is given no plain store.
    assert!(desk.ok("create cluster plain").contains("it is not encrypted"));
    desk.fails("status plain --key second", 1, &["is not encrypted"]);
    assert!(desk.ok("status plain").contains("not encrypted"));
    desk.fails("key list plain", 1, &["not encrypted"]);
    desk.fails("create cluster b --no-encryption --key key2", 2, &["--no-encryption"]);
}

/// The store moved, and the link that leads to it too: what was noted of the place where it had been was an
/// older state.
#[test]
fn rule_43_an_older_image_is_noticed_at_a_place_to_which_a_link_led_before() {
    let desk = Desk::new();
    let link = |to: &str| {
        let _ = fs::remove_file(desk.path("link"));
        std::os::unix::fs::symlink(desk.path(to), desk.path("link")).unwrap();
    };
    desk.ok("create block first --size 64M --key key");
    link("first");
    desk.ok("volume create link vm1 --size 1M --key key");
    fs::copy(desk.path("first"), desk.path("image")).unwrap();
    fs::rename(desk.path("first"), desk.path("second")).unwrap();
    link("second");
    desk.ok("volume create link vm2 --size 1M --key key");
    // Somebody puts an older image where the store was.
    fs::rename(desk.path("image"), desk.path("first")).unwrap();
    fs::hard_link(desk.path("first"), desk.path("third")).unwrap();
    for path in ["first", "third"] {
        let verb = format!("volume list {path} --key key");
        desk.fails(&verb, 1, &["older", "--accept-older"]);
    }
    desk.ok("volume list second --key key");
    // The operator takes it, and then it counts.
    desk.ok("volume create first vm3 --size 1M --key key --accept-older");
    desk.ok("volume list third --key key");
}

/// The image that somebody put back is whole, and proven by its keys: only this machine knows more.
#[test]
fn rule_43_an_older_image_of_a_block_store_is_noticed_by_whoever_worked_on_the_store() {
    let desk = Desk::new();
    desk.ok("create block disk --size 64M --key key");
    desk.ok("volume create disk vm1 --size 1M --key key");
    fs::copy(desk.path("disk"), desk.path("older")).unwrap();
    for name in ["vm2", "vm3"] {
        desk.ok(&format!("volume create disk {name} --size 1M --key key"));
    }
    fs::copy(desk.path("disk"), desk.path("newer")).unwrap();
    let put_back = |from: &str| {
        let bytes = fs::read(desk.path(from)).unwrap();
        fs::write(desk.path("disk"), bytes).unwrap();
    };
    put_back("older");
    for verb in [
        "check disk",
        "scrub disk",
        "volume list disk",
        "repair disk",
        "volume create disk vm4 --size 1M",
        "key add disk --new other",
        "inspect disk volume vm1",
    ] {
        desk.fails(&format!("{verb} --key key"), 1, &["older", "--accept-older"]);
    }
    // Nothing was written but who worked on it last, in block 4.
    let (disk, older) =
        (fs::read(desk.path("disk")).unwrap(), fs::read(desk.path("older")).unwrap());
    let blocks = disk.chunks(4096).zip(older.chunks(4096)).enumerate();
    let changed: Vec<usize> = blocks.filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
    assert!(disk.len() == older.len() && changed.iter().all(|at| *at == 4), "{changed:?}");
    put_back("newer");
    desk.ok("check disk --key key");
    // So is one that lies elsewhere, and one to which another link leads: what counts is the store's id.
    desk.fails("check older --key key", 1, &["older", "--accept-older"]);
    desk.ok("check older --key key --accept-older");
    std::os::unix::fs::symlink(desk.path("older"), desk.path("another")).unwrap();
    desk.fails("volume list another --key key", 1, &["older", "--accept-older"]);
    // The operator put it back.
    put_back("older");
    desk.ok("volume create disk vm4 --size 1M --key key --accept-older");
    desk.ok("volume list disk --key key");
    put_back("older");
    desk.fails("volume list disk --key key", 1, &["--accept-older"]);
}

/// A change of keys and a repair work without a served store, and note its state all the same.
#[test]
fn rule_43_an_image_from_before_a_change_of_keys_or_a_repair_is_noticed() {
    let desk = Desk::new();
    desk.ok("create block disk --size 64M --key key");
    desk.ok("domain create disk one --key key");
    desk.ok("volume create disk vm1 --size 1M --domain one --key key");
    let digits = {
        let said = desk.fails("domain erase disk one --key key", 1, &["--confirm"]);
        said.err.rsplit_once("--confirm ").unwrap().1.trim().to_owned()
    };
    for verb in [
        "domain create disk other --key key".to_owned(),
        "key add disk --new second --key key".to_owned(),
        format!("domain erase disk one --confirm {digits} --key key"),
    ] {
        let before = fs::read(desk.path("disk")).unwrap();
        desk.ok(&verb);
        let after = fs::read(desk.path("disk")).unwrap();
        fs::write(desk.path("disk"), before).unwrap();
        desk.fails("volume list disk --key key", 1, &["older", "--accept-older"]);
        fs::write(desk.path("disk"), after).unwrap();
        desk.ok("volume list disk --key key");
    }
    // A server that was killed left work to be recovered; repair does it.
    let serving = desk.serve("disk --key key");
    desk.ok("volume create disk vm2 --size 1M --key key");
    serving.kill();
    let before = fs::read(desk.path("disk")).unwrap();
    desk.ok("repair disk --key key");
    fs::write(desk.path("disk"), before).unwrap();
    desk.fails("volume list disk --key key", 1, &["older", "--accept-older"]);
}

/// A terminal, and who asks for a passphrase on it.
struct Asking {
    terminal: fs::File,
    /// The end of the program, which keeps the terminal in being.
    inner: fs::File,
    child: std::process::Child,
    said: String,
}

impl Asking {
    /// Runs a verb on a terminal of its own until it has asked.
    fn by(desk: &Desk, arguments: &str) -> Asking {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let terminal = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&terminal).unwrap();
        rustix::pty::unlockpt(&terminal).unwrap();
        let name = rustix::pty::ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let inner = fs::File::options().read(true).write(true).open(name).unwrap();
        let verb = desk.command(arguments);
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(verb.get_program()).args(verb.get_args());
        command.current_dir(desk.path(""));
        command.envs(verb.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let end = || Stdio::from(inner.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let mut asking = Asking { terminal: terminal.into(), inner, child, said: String::new() };
        while !asking.said.ends_with(": ") {
            let mut some = [0; 100];
            let n = asking.terminal.read(&mut some).unwrap();
            asking.said += std::str::from_utf8(&some[..n]).unwrap();
        }
        while asking.shows_what_is_typed() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        asking
    }

    fn shows_what_is_typed(&self) -> bool {
        use rustix::termios::LocalModes;
        let modes = rustix::termios::tcgetattr(&self.inner).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }
}

#[test]
fn a_question_names_the_store_and_leaves_the_terminal_as_it_was_however_it_ends() {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::{Pid, Signal, kill_process};

    let desk = Desk::new();
    assert!(with_words(&desk, "create archive a --key passphrase", "correct horse").0);
    let send =
        |asking: &Asking, signal| kill_process(Pid::from_child(&asking.child), signal).unwrap();
    for (keys, sent, ends_by) in [
        ("correct horse\n", None, None),
        ("\x03", None, Some(Signal::INT)),
        ("corr", Some(Signal::INT), Some(Signal::INT)),
        ("", Some(Signal::TERM), Some(Signal::TERM)),
        ("", Some(Signal::HUP), Some(Signal::HUP)),
    ] {
        let mut asking = Asking::by(&desk, "ls a");
        assert_eq!(asking.said, "passphrase of a: ");
        (&asking.terminal).write_all(keys.as_bytes()).unwrap();
        sent.into_iter().for_each(|signal| send(&asking, signal));
        let ended = asking.child.wait().unwrap();
        assert_eq!(ended.signal(), ends_by.map(Signal::as_raw), "{keys}");
        assert!(asking.shows_what_is_typed(), "{ends_by:?}");
    }
    // Who serves stops in order by these signals, and has nothing to stop yet.
    for verb in ["serve a", "create archive b"] {
        let mut asking = Asking::by(&desk, verb);
        send(&asking, Signal::TERM);
        assert_eq!(asking.child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()), "{verb}");
        assert!(asking.shows_what_is_typed(), "{verb}");
    }
}
