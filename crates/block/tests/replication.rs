//! Snapshots sent from one store to another: whole and changes alone, cut off anywhere, refused where
//! they do not fit. Crashes are the simulator's.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use onefold_block::{Begin, Copies, Format, SendWhat, StoreExports, StreamWriter, Token};
use onefold_core::{Block, Exports, Kind};

use support::{Site, changes, content, formatted, opened, opened_without_background, same, whole};

const BLOCKS: u64 = 3000;

fn site(secret: u8) -> Site {
    formatted(&Format { zone_blocks: 64, ..Format::new([secret; 16], [secret; 32], 65_536) })
}

fn change(site: &Site, name: &str, dice: &mut Dice, changes: u64) {
    let volume = site.volume(name);
    let size = volume.size() / 4096;
    for _ in 0..changes {
        let first = dice.roll(size);
        let blocks = 1 + dice.roll(20.min(size - first));
        let (offset, bytes) = (first * 4096, blocks * 4096);
        match dice.roll(8) {
            0 => volume.trim(offset, bytes).unwrap(),
            1 => volume.write_zeroes(offset, bytes, true).unwrap(),
            2 => volume.trim(offset, (dice.roll(size - first) + 1) * 4096).unwrap(),
            _ => {
                let mut data = Vec::new();
                for _ in 0..blocks {
                    let (byte, kind) = (dice.roll(250) as u8, dice.roll(3));
                    data.extend((0..4096u32).map(|n| match kind {
                        0 => byte,
                        1 => byte ^ ((n * n) >> 7) as u8,
                        _ => dice.roll(256) as u8,
                    }));
                }
                volume.write(offset, &data).unwrap()
            }
        };
    }
}

fn send(site: &Site, what: &SendWhat) -> Vec<u8> {
    let mut bytes = Vec::new();
    Copies::of(&site.store).send(what, &mut bytes).unwrap();
    bytes
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn a_chain_of_snapshots_comes_over_and_the_replica_is_the_last_one() {
    for seed in 1..5 {
        let dice = &mut Dice(seed);
        let (here, there) = (site(1), site(2));
        here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
        change(&here, "vm1", dice, 120);
        here.snapshot("vm1@0");
        there.receive(&send(&here, &whole("vm1@0"))).unwrap();
        for round in 1..6 {
            let (from, to) = (format!("vm1@{}", round - 1), format!("vm1@{round}"));
            if dice.roll(3) == 0 {
                let size = 1 + dice.roll(2 * BLOCKS);
                here.store.resize_volume("vm1", size * 4096).unwrap();
            }
            change(&here, "vm1", dice, 10);
            here.snapshot(&to);
            let stream = send(&here, &changes(&from, &to));
            assert_eq!(there.receive(&stream).unwrap().name, to);
            same(&there.read(&to), &here.read(&to));
            same(&there.read("vm1"), &here.read(&to));
            same(&there.read(&from), &here.read(&from));
        }
        let volume = there.volume("vm1");
        assert!(volume.is_read_only());
        assert_eq!(volume.write(0, &[1; 4096]).unwrap_err().kind(), Kind::Denied);
        drop(volume);
        Copies::of(&there.store).promote("vm1").unwrap();
        change(&there, "vm1", dice, 3);
        here.end();
        there.end();
    }
}

#[test]
fn a_stream_that_is_cut_off_anywhere_shows_nothing_and_goes_on() {
    let dice = &mut Dice(9);
    let (here, there) = (site(1), site(2));
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    change(&here, "vm1", dice, 150);
    here.snapshot("vm1@a");
    change(&here, "vm1", dice, 60);
    here.snapshot("vm1@b");
    for (n, mut what) in [whole("vm1@a"), changes("vm1@a", "vm1@b")].into_iter().enumerate() {
        let mut cuts = 0;
        loop {
            let stream = send(&here, &what);
            let cut = 100 + dice.roll(stream.len() as u64 / 4 + 30_000) as usize;
            let error = match stream.get(..cut) {
                None => {
                    there.receive(&stream).unwrap();
                    break;
                }
                Some(part) => there.receive(part).unwrap_err(),
            };
            assert_eq!(error.kind(), Kind::Io);
            cuts += 1;
            // Neither the snapshot nor, at first, the volume is there.
            let seen = StoreExports(there.store.clone()).list();
            assert_eq!(seen.len(), n);
            assert!(there.store.engine().find_volume(&what.snapshot).is_err());
            match &Copies::of(&there.store).receives()[..] {
                // The beginning itself was cut off.
                [] => {}
                [state] => {
                    assert_eq!(state.name, what.snapshot);
                    what.resume = Some(state.token.to_string().parse::<Token>().unwrap());
                    // Both names are taken, and what it is based on stays.
                    let taken = there.store.create_volume("vm1", 4096).unwrap_err();
                    assert_eq!(taken.kind(), Kind::Exists);
                    if n == 1 {
                        let names = ["vm1@b".to_owned()];
                        let taken = there.store.snapshot(&names, &mut || {}).unwrap_err();
                        assert_eq!(taken.kind(), Kind::Exists);
                        assert!(Copies::of(&there.store).promote("vm1").is_err());
                        assert!(there.store.delete_snapshot("vm1@a", true).is_err());
                        same(&there.read("vm1"), &here.read("vm1@a"));
                    }
                }
                more => panic!("{more:?}"),
            }
        }
        assert!(cuts >= 3, "{cuts}");
        assert_eq!(Copies::of(&there.store).receives(), []);
        same(&there.read(&what.snapshot), &here.read(&what.snapshot));
    }
    same(&there.read("vm1"), &here.read("vm1@b"));
    here.end();
    there.end();
}

#[test]
fn a_receive_that_was_cut_off_is_there_when_the_store_is_opened_again_and_can_be_given_up() {
    let dice = &mut Dice(5);
    let (here, there) = (site(1), site(2));
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    change(&here, "vm1", dice, 100);
    here.snapshot("vm1@a");
    let stream = send(&here, &whole("vm1@a"));
    there.receive(&stream[..stream.len() / 2]).unwrap_err();
    let before = Copies::of(&there.store).receives();
    assert!(before[0].received_bytes > 0);
    let disk = there.disk.clone();
    there.end();
    let there = opened(disk);
    assert_eq!(Copies::of(&there.store).receives(), before);
    let rest = send(&here, &SendWhat { resume: Some(before[0].token), ..whole("vm1@a") });
    assert!(rest.len() < stream.len());
    there.receive(&rest[..rest.len() / 2]).unwrap_err();
    Copies::of(&there.store).abort_receive("vm1").unwrap();
    assert_eq!(Copies::of(&there.store).receives(), []);
    assert_eq!(Copies::of(&there.store).abort_receive("vm1").unwrap_err().kind(), Kind::NotFound);
    // What goes on where nothing is, is refused; from its beginning it is taken.
    assert_eq!(there.receive(&rest).unwrap_err().kind(), Kind::InvalidInput);
    there.receive(&stream).unwrap();
    same(&there.read("vm1"), &here.read("vm1@a"));
    here.end();
    there.end();
}

#[test]
fn what_does_not_fit_is_refused() {
    let dice = &mut Dice(7);
    let (here, there) = (site(1), site(2));
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    change(&here, "vm1", dice, 50);
    for name in ["vm1@a", "vm1@b", "vm1@c"] {
        here.snapshot(name);
        change(&here, "vm1", dice, 5);
    }
    let kind = |stream: &[u8]| there.receive(stream).unwrap_err().kind();
    // No volume, no base, a name that is taken, a base that the replica does not hold.
    assert_eq!(kind(&send(&here, &changes("vm1@a", "vm1@b"))), Kind::NotFound);
    there.receive(&send(&here, &whole("vm1@a"))).unwrap();
    assert_eq!(kind(&send(&here, &changes("vm1@b", "vm1@c"))), Kind::NotFound);
    assert_eq!(kind(&send(&here, &whole("vm1@b"))), Kind::Exists);
    there.receive(&send(&here, &changes("vm1@a", "vm1@b"))).unwrap();
    assert_eq!(kind(&send(&here, &changes("vm1@a", "vm1@b"))), Kind::Exists);
    assert_eq!(kind(&send(&here, &changes("vm1@a", "vm1@c"))), Kind::InvalidInput);
    // A volume that was changed is given up only when that is said.
    Copies::of(&there.store).promote("vm1").unwrap();
    let stream = send(&here, &changes("vm1@b", "vm1@c"));
    assert_eq!(kind(&stream), Kind::InvalidInput);
    Copies::of(&there.store).receive(None, true, &stream[..], &mut |_| Ok(())).unwrap();
    same(&there.read("vm1"), &here.read("vm1@c"));
    // Another name, and raw data.
    let stream = send(&here, &whole("vm1@a"));
    Copies::of(&there.store).receive(Some("other"), false, &stream[..], &mut |_| Ok(())).unwrap();
    same(&there.read("other"), &here.read("vm1@a"));
    let mut raw = Vec::new();
    Copies::of(&here.store).export("vm1", &mut raw).unwrap();
    assert_eq!(kind(&raw), Kind::InvalidInput);
    Copies::of(&there.store).import("raw", &raw[..], &mut |_| Ok(())).unwrap();
    same(&there.read("raw"), &here.read("vm1"));
    let token = Token { guid: [1; 16], base: [0; 16], cursor: 5 };
    let wrong = SendWhat { resume: Some(token), ..whole("vm1@a") };
    assert_eq!(
        Copies::of(&here.store).send(&wrong, &mut Vec::new()).unwrap_err().kind(),
        Kind::InvalidInput
    );
    here.end();
    there.end();
}

#[test]
fn snapshots_of_one_moment_have_numbers_of_their_own() {
    let dice = &mut Dice(11);
    let (here, there) = (site(1), site(2));
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    change(&here, "vm1", dice, 20);
    // The same millisecond, and the same content.
    let names = ["vm1@a".to_owned(), "vm1@b".to_owned()];
    here.store.snapshot(&names, &mut || {}).unwrap();
    change(&here, "vm1", dice, 5);
    here.snapshot("vm1@c");
    there.receive(&send(&here, &whole("vm1@a"))).unwrap();
    // The replica holds another snapshot, though one with the same content.
    let last = send(&here, &changes("vm1@b", "vm1@c"));
    assert_eq!(there.receive(&last).unwrap_err().kind(), Kind::NotFound);
    there.receive(&send(&here, &changes("vm1@a", "vm1@b"))).unwrap();
    there.receive(&last).unwrap();
    same(&there.read("vm1"), &here.read("vm1@c"));
    here.end();
    there.end();
}

#[test]
fn changes_cost_what_changed_and_like_blocks_are_sent_once() {
    let (here, there) = (site(1), site(2));
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    let volume = here.volume("vm1");
    let dice = &mut Dice(3);
    let image: Vec<u8> = (0..1000 * 4096).map(|_| dice.roll(256) as u8).collect();
    volume.write(0, &image).unwrap();
    volume.write(1500 * 4096, &image).unwrap();
    drop(volume);
    here.snapshot("vm1@a");
    let first = send(&here, &whole("vm1@a"));
    assert!(first.len() < 1100 * 4096, "{}", first.len());
    let volume = here.volume("vm1");
    volume.write(10 * 4096, &image[..4096 * 7 + 100]).unwrap();
    drop(volume);
    here.snapshot("vm1@b");
    let second = send(&here, &changes("vm1@a", "vm1@b"));
    assert!(second.len() < 10 * 4096, "{}", second.len());
    there.receive(&first).unwrap();
    there.receive(&second).unwrap();
    same(&there.read("vm1"), &here.read("vm1@b"));
    here.end();
    there.end();
}

#[test]
fn an_import_of_unknown_size_grows_and_one_that_fails_leaves_nothing() {
    let there = site(2);
    let mut stream = Vec::new();
    let begin = Begin::default();
    let mut writer = StreamWriter::begin(&mut stream, &begin, false).unwrap();
    let mut block = Block::zeroed_vec(1);
    block[0].0.fill(7);
    for at in [0, 1, 5, 700, 2500] {
        writer.data(at, &block).unwrap();
    }
    writer.end(2600).unwrap();
    assert_eq!(
        Copies::of(&there.store).import("raw", &stream[..], &mut |_| Ok(())).unwrap(),
        2600 * 4096
    );
    let blocks = there.read("raw");
    let full = blocks.iter().enumerate().filter(|(_, block)| block.0 == [7; 4096]);
    assert_eq!(full.map(|(n, _)| n).collect::<Vec<_>>(), [0, 1, 5, 700, 2500]);
    let again = Copies::of(&there.store).import("raw", &stream[..], &mut |_| Ok(()));
    assert_eq!(again.unwrap_err().kind(), Kind::Exists);
    let cut = &stream[..stream.len() - 40];
    assert_eq!(
        Copies::of(&there.store).import("cut", cut, &mut |_| Ok(())).unwrap_err().kind(),
        Kind::Io
    );
    assert_eq!(there.store.engine().volumes().len(), 1);
    there.end();
}

#[test]
fn clients_write_while_a_snapshot_is_sent_and_another_is_received() {
    let (here, there) = (site(1), site(2));
    let dice = &mut Dice(11);
    for site in [&here, &there] {
        site.store.create_volume("busy", BLOCKS * 4096).unwrap();
    }
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    change(&here, "vm1", dice, 100);
    here.snapshot("vm1@a");
    let failed = Mutex::new(false);
    thread::scope(|scope| {
        let writer = |site: &Site, seed| {
            let dice = &mut Dice(seed);
            while !*failed.lock().unwrap_or_else(PoisonError::into_inner) {
                change(site, "busy", dice, 5);
                thread::sleep(std::time::Duration::from_millis(2));
            }
        };
        let (one, other) = (&here, &there);
        scope.spawn(move || writer(one, 5));
        scope.spawn(move || writer(other, 6));
        for round in 0..4 {
            let stream = send(&here, &whole("vm1@a"));
            let name = format!("copy{round}");
            Copies::of(&there.store)
                .receive(Some(&name), false, &stream[..], &mut |_| Ok(()))
                .unwrap();
            same(&there.read(&name), &here.read("vm1@a"));
        }
        *failed.lock().unwrap_or_else(PoisonError::into_inner) = true;
    });
    here.end();
    there.end();
}

/// Programs of before gave snapshots one number between which nothing was written.
#[test]
fn snapshots_of_one_number_are_received_as_what_the_replica_holds() {
    let there = site(2);
    let stream = |snapshot: &str, guid: u8, base: u8, byte: Option<u8>| {
        let begin = Begin {
            guid: [guid; 16],
            base: [base; 16],
            volume: "vm1".to_owned(),
            snapshot: snapshot.to_owned(),
            blocks: 10,
            ..Begin::default()
        };
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::begin(&mut bytes, &begin, true).unwrap();
        if let Some(byte) = byte {
            let mut blocks = Block::zeroed_vec(2);
            blocks.iter_mut().for_each(|block| block.0.fill(byte));
            writer.data(3, &blocks).unwrap();
        }
        writer.end(10).unwrap();
        bytes
    };
    there.receive(&stream("a", 1, 0, Some(7))).unwrap();
    // The same as `a`, with its number; cut off, and then another of that number.
    let again = stream("b", 1, 1, None);
    there.receive(&again[..again.len() - 10]).unwrap_err();
    assert_eq!(there.receive(&stream("c", 1, 1, None)).unwrap().name, "vm1@c");
    assert_eq!(there.receive(&again).unwrap().name, "vm1@b");
    // What changed since the later one: both are of that number.
    assert_eq!(there.receive(&stream("d", 2, 1, Some(9))).unwrap().name, "vm1@d");
    assert_eq!(there.read("vm1")[3].0[0], 9);
    for name in ["vm1@a", "vm1@b", "vm1@c"] {
        assert_eq!(there.read(name)[3].0[0], 7, "{name}");
    }
    there.end();
}

#[test]
fn an_import_and_a_receive_find_what_a_store_has_that_was_just_opened() {
    const IMAGE: u64 = 300;
    let (here, there) = (site(1), site(2));
    here.store.create_volume("vm1", IMAGE * 4096).unwrap();
    here.fill("vm1", 0, 0..IMAGE);
    here.snapshot("vm1@a");
    let (stream, mut raw) = (send(&here, &whole("vm1@a")), Vec::new());
    Copies::of(&here.store).export("vm1", &mut raw).unwrap();
    here.end();
    Copies::of(&there.store).import("first", &raw[..], &mut |_| Ok(())).unwrap();
    let there = opened_without_background(there.close());
    Copies::of(&there.store).import("again", &raw[..], &mut |_| Ok(())).unwrap();
    assert_eq!(there.store.engine().counts().duplicate_blocks, IMAGE);
    let there = opened_without_background(there.close());
    there.receive(&stream).unwrap();
    assert_eq!(there.store.engine().counts().duplicate_blocks, IMAGE);
    assert_eq!(there.read("again")[299].0, content(299)[..]);
    there.end();
}
