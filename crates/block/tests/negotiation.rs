//! Snapshots sent to a store of the same secret, whose answers say what is missing there: only that goes
//! over, also when it was cut off anywhere; strangers get nothing.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::{
    io::{PipeReader, Read, Write, pipe},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use onefold_backend::MemoryDisk;
use onefold_block::{
    Begin, Copies, Format, Received, SendWhat, StoreExports, StreamWriter, Totals,
};
use onefold_core::{Algorithm, Block, BlockRef, Class, Disk, Exports, Kind, Pba, Result, Run};

use support::{Site, content, formatted, opened, same, whole};

const BLOCKS: u64 = 20_000;

fn site(id: u8, secret: u8) -> Site {
    formatted(&Format::new([id; 16], [secret; 32], 65_536))
}

/// A volume of this name with the contents of these numbers from a block on.
fn create(site: &Site, name: &str, first: u64, contents: Range<u64>) {
    site.store.create_volume(name, BLOCKS * 4096).unwrap();
    site.fill(name, first, contents);
}

/// Passes so many bytes on, and counts them.
fn wire(
    mut from: PipeReader,
    mut to: impl Write + Send + 'static,
    most: u64,
) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let (mut buffer, mut passed) = (vec![0; 64 << 10], 0);
        while passed < most
            && let Ok(n @ 1..) = from.read(&mut buffer)
        {
            let n = n.min((most - passed) as usize);
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
            passed += n as u64;
        }
        passed
    })
}

/// The results of a copy, and the bytes that went to the receiver and back.
struct Copied {
    sent: Result<Totals>,
    received: Result<Received>,
    there: u64,
    back: u64,
}

/// Sends over two pipes, which break after so many bytes to the receiver.
fn copy(here: &Site, there: &Site, what: &SendWhat, most: u64) -> Copied {
    let (stream_out, stream) = pipe().unwrap();
    let (stream_in, passed_on) = pipe().unwrap();
    let (answers_out, answers) = pipe().unwrap();
    let (answers_in, passed_back) = pipe().unwrap();
    let to = wire(stream_out, passed_on, most);
    let back = wire(answers_out, passed_back, u64::MAX);
    let target = there.store.clone();
    let receiving = thread::spawn(move || {
        let mut answers = answers;
        let look = &mut |_| Ok(());
        Copies::of(&target).receive_or_negotiate(
            None,
            false,
            stream_in,
            &mut answers,
            &[2; 32],
            look,
        )
    });
    let mut stream = stream;
    let sent = Copies::of(&here.store).negotiate(what, &[1; 32], &mut stream, answers_in);
    drop(stream);
    let received = receiving.join().unwrap();
    Copied { sent, received, there: to.join().unwrap(), back: back.join().unwrap() }
}

/// The receiver has the first 5,000 contents of 6,000 somewhere else.
fn pair(secret: u8) -> (Site, Site) {
    let (here, there) = (site(1, 1), site(2, secret));
    create(&here, "vm1", 100, 0..6000);
    here.fill("vm1", 9000, 2000..2500);
    here.snapshot("vm1@a");
    create(&there, "other", 0, 0..5000);
    there.snapshot("other@kept");
    (here, there)
}

#[test]
fn only_what_is_missing_goes_over_and_all_of_it_is_right() {
    let (here, there) = pair(1);
    let done = copy(&here, &there, &whole("vm1@a"), u64::MAX);
    let totals = done.sent.unwrap();
    assert_eq!((totals.data, totals.held, totals.repeats), (1000, 5500, 0));
    // 16 bytes for each offered block, and a few for each run of held ones.
    let payload = 1000 * 4096 + 6500 * 16;
    assert!((payload..payload + 16_384).contains(&done.there), "{} of {payload}", done.there);
    assert!(done.back < 2000, "{}", done.back);
    let received = done.received.unwrap();
    assert_eq!((received.totals, received.negotiated), (totals, true));
    same(&there.read("vm1"), &here.read("vm1@a"));
    same(&there.read("vm1@a"), &here.read("vm1@a"));
    // Changes since: with a base, nothing else is offered.
    here.fill("vm1", 0, 10_000..10_010);
    here.fill("vm1", 50, 3000..3010);
    here.snapshot("vm1@b");
    let what = SendWhat { from: Some("vm1@a".to_owned()), ..whole("vm1@b") };
    let done = copy(&here, &there, &what, u64::MAX);
    let totals = done.sent.unwrap();
    assert_eq!((totals.data, totals.held), (10, 10));
    assert!(done.there < 10 * 4096 + 4096, "{}", done.there);
    same(&there.read("vm1"), &here.read("vm1"));
    here.end();
    there.end();
}

#[test]
fn a_receiver_that_was_just_opened_asks_for_no_block_that_it_has() {
    let (here, there) = pair(1);
    let there = there.reopened();
    let done = copy(&here, &there, &whole("vm1@a"), u64::MAX);
    let totals = done.sent.unwrap();
    assert_eq!((totals.data, totals.held), (1000, 5500));
    done.received.unwrap();
    same(&there.read("vm1"), &here.read("vm1@a"));
    here.end();
    there.end();
}

#[test]
fn a_copy_that_is_cut_off_anywhere_goes_on() {
    let (here, there) = pair(1);
    let size = 4_300_000;
    for n in 0..20 {
        let token = Copies::of(&there.store).receives().first().map(|one| one.token);
        let what = SendWhat { resume: token, ..whole("vm1@a") };
        let most = if n % 2 == 0 { n * 5000 } else { n * size / 40 };
        let cut = copy(&here, &there, &what, most);
        if let Ok(received) = cut.received {
            assert!(n > 3, "it was cut off: {received:?}");
            break;
        }
        assert!(cut.sent.is_err());
        assert!(there.store.engine().find_volume("vm1").is_err(), "nobody sees a part");
        // Without negotiation, too.
        if n == 7 {
            let token = Copies::of(&there.store).receives().first().map(|one| one.token);
            let mut bytes = Vec::new();
            let what = SendWhat { resume: token, ..whole("vm1@a") };
            Copies::of(&here.store).send(&what, &mut bytes).unwrap();
            let half = &bytes[..bytes.len() / 2];
            Copies::of(&there.store).receive(None, false, half, &mut |_| Ok(())).unwrap_err();
        }
    }
    if there.store.engine().find_volume("vm1").is_err() {
        let token = Copies::of(&there.store).receives().first().map(|one| one.token);
        let done = copy(&here, &there, &SendWhat { resume: token, ..whole("vm1@a") }, u64::MAX);
        done.sent.unwrap();
        done.received.unwrap();
    }
    same(&there.read("vm1"), &here.read("vm1@a"));
    here.end();
    there.end();
}

/// A stream that goes on with the receive of `vm1@a`, and ends without a block.
fn go_on_with_nothing(there: &Site) {
    let receive = Copies::of(&there.store).receives().remove(0);
    let begin = Begin {
        guid: receive.token.guid,
        base: receive.token.base,
        volume: "vm1".to_owned(),
        snapshot: "a".to_owned(),
        blocks: BLOCKS,
        start: receive.token.cursor,
        ..Begin::default()
    };
    let mut bytes = Vec::new();
    StreamWriter::begin(&mut bytes, &begin, false).unwrap().end(BLOCKS).unwrap();
    there.receive(&bytes).unwrap();
}

/// Who has the secret and knows fingerprints could offer them, end, and end the stream in another way:
/// the volume had what the fingerprints stand for.
#[test]
fn rule_18_content_that_was_not_proved_to_be_the_senders_is_in_no_volume() {
    let all_held = || {
        let (here, there) = (site(1, 1), site(2, 1));
        create(&here, "vm1", 0, 0..256);
        here.snapshot("vm1@a");
        create(&there, "other", 0, 0..256);
        (here, there)
    };
    let (here, there) = all_held();
    let done = copy(&here, &there, &whole("vm1@a"), u64::MAX);
    assert_eq!(done.sent.unwrap().held, 256);
    here.end();
    there.end();
    // The end has 104 bytes, and the frame before it 96.
    for (less, proved) in [(200, false), (150, false), (104, true)] {
        let (here, there) = all_held();
        let cut = copy(&here, &there, &whole("vm1@a"), done.there - less);
        assert!(cut.sent.is_err() && cut.received.is_err());
        go_on_with_nothing(&there);
        let blocks = there.read("vm1");
        let has = blocks.iter().filter(|block| block.0.iter().any(|byte| *byte != 0)).count();
        assert_eq!(has, if proved { 256 } else { 0 }, "{less} bytes less");
        here.end();
        there.end();
    }
}

/// The copy of a disk as it is now.
fn copied(disk: &MemoryDisk) -> Arc<MemoryDisk> {
    let copy = Arc::new(MemoryDisk::new(disk.blocks()));
    let mut blocks = Block::zeroed_vec(1024);
    for at in (0..disk.blocks()).step_by(1024).map(Pba) {
        disk.read(&mut [onefold_core::Read::new(at, &mut blocks)]);
        let refs: Vec<BlockRef<'_>> =
            blocks.iter().map(|block| BlockRef { block, class: Class::Data }).collect();
        copy.write(&[Run { at, blocks: &refs }]).unwrap();
    }
    copy
}

/// Sends to a receiver that answers. When the sender has its first answer, `then` runs, and nothing
/// more goes over.
fn copy_unproved(
    here: &Site,
    there: &Site,
    what: &SendWhat,
    then: impl FnOnce() + Send + 'static,
) -> (Result<Totals>, Result<Received>) {
    // The receiver's beginning: who it is, a nonce, and its proof.
    const BEGINNING: u64 = 80;
    let (mut stream_out, mut stream) = pipe().unwrap();
    let (stream_in, mut passed_on) = pipe().unwrap();
    let (mut answers_out, mut answers) = pipe().unwrap();
    let (answers_in, mut passed_back) = pipe().unwrap();
    let answered = Arc::new(AtomicU64::new(0));
    let came = answered.clone();
    let back = thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = answers_out.read(&mut buffer) {
            came.fetch_add(n as u64, SeqCst);
            if passed_back.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
    });
    let to = thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = stream_out.read(&mut buffer) {
            if answered.load(SeqCst) > BEGINNING {
                return then();
            }
            passed_on.write_all(&buffer[..n]).unwrap();
        }
    });
    let target = there.store.clone();
    let receiving = thread::spawn(move || {
        let copies = Copies::of(&target);
        let look = &mut |_| Ok(());
        copies.receive_or_negotiate(None, false, stream_in, &mut answers, &[2; 32], look)
    });
    let sent = Copies::of(&here.store).negotiate(what, &[1; 32], &mut stream, answers_in);
    drop(stream);
    let received = receiving.join().unwrap();
    to.join().unwrap();
    back.join().unwrap();
    (sent, received)
}

/// A server that is killed takes nothing back: the stream that goes on after that could leave it there.
#[test]
fn rule_18_content_that_was_not_proved_when_the_server_was_killed_is_in_no_volume() {
    for based in [false, true] {
        let (here, there) = (site(1, 1), site(2, 1));
        let what = if based {
            create(&here, "vm1", 0, 5000..5300);
            here.snapshot("vm1@0");
            copy(&here, &there, &whole("vm1@0"), u64::MAX).received.unwrap();
            SendWhat { from: Some("vm1@0".to_owned()), ..whole("vm1@a") }
        } else {
            create(&here, "vm1", 0, 5000..5000);
            whole("vm1@a")
        };
        here.fill("vm1", 0, 0..256);
        here.snapshot("vm1@a");
        create(&there, "other", 0, 0..256);
        let killed = Arc::new(Mutex::new(None));
        let (disk, other, image) = (there.disk.clone(), there.store.clone(), killed.clone());
        // What was named is in the receive when the sender has its answer.
        let kill = move || {
            StoreExports(other.clone()).open("other").unwrap().flush().unwrap();
            *image.lock().unwrap() = Some(copied(&disk));
        };
        let (sent, received) = copy_unproved(&here, &there, &what, kill);
        assert!(sent.is_err() && received.is_err());
        there.end();
        let there = opened(killed.lock().unwrap().take().unwrap());
        go_on_with_nothing(&there);
        let blocks = there.read("vm1");
        if based {
            same(&blocks, &here.read("vm1@0"));
        } else {
            assert!(blocks.iter().all(|block| block.0.iter().all(|byte| *byte == 0)));
        }
        here.end();
        there.end();
    }
}

#[test]
fn a_store_of_another_secret_learns_nothing_and_says_so() {
    let (here, there) = pair(9);
    let done = copy(&here, &there, &whole("vm1@a"), u64::MAX);
    let said = done.sent.unwrap_err().to_string();
    assert!(said.contains("another secret") && said.contains("--like"), "{said}");
    assert_eq!((done.there, done.back), (48, 80), "magic, nonces and a proof");
    assert_eq!(done.received.unwrap_err().kind(), Kind::Io);
    assert!(Copies::of(&there.store).receives().is_empty());
    here.end();
    there.end();
}

#[test]
fn a_store_that_compares_bytes_does_not_negotiate() {
    let format = Format {
        algorithm: Algorithm::Md5,
        verify_bytes: true,
        ..Format::new([3; 16], [1; 32], 65_536)
    };
    let (here, there) = (formatted(&format), site(2, 1));
    for (one, other) in [(&here, &there), (&there, &here)] {
        create(one, "vm1", 0, 0..10);
        one.snapshot("vm1@a");
        let done = copy(one, other, &whole("vm1@a"), u64::MAX);
        assert!(done.sent.is_err() && done.received.is_err());
        let (sent, received) = (done.sent.unwrap_err(), done.received.unwrap_err());
        let said = format!("{sent} {received}");
        assert!(said.contains("--verify bytes"), "{said}");
        one.store.delete_snapshot("vm1@a", false).unwrap();
        one.store.delete_volume("vm1").unwrap();
    }
    here.end();
    there.end();
}

/// Data that the receiver's disk has lost is not there: it is sent.
#[test]
fn what_is_damaged_there_is_missing() {
    let (here, there) = pair(1);
    there.store.flush().unwrap();
    let mut damaged = 0;
    for at in 1000..there.disk.blocks() {
        let mut block = Block::zeroed_vec(1);
        let mut read = [onefold_core::Read::new(onefold_core::Pba(at), &mut block)];
        there.disk.read(&mut read);
        if block[0].0[..] == content(77)[..] || block[0].0[..] == content(3333)[..] {
            block[0].0[5] ^= 1;
            let blocks = [BlockRef { block: &block[0], class: Class::Data }];
            let run = Run { at: onefold_core::Pba(at), blocks: &blocks };
            there.disk.write(&[run]).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "no block lies as it is on the disk");
    let done = copy(&here, &there, &whole("vm1@a"), u64::MAX);
    let totals = done.sent.unwrap();
    assert_eq!((totals.data, totals.held), (1000 + damaged, 5500 - damaged));
    done.received.unwrap();
}
