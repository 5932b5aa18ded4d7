//! A snapshot of which a part can't be read is sent past the damage: at the receiver that part is lost,
//! an error to read until it is written or trimmed, and never anything else. Crashes are the
//! simulator's.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;
mod support;

use std::{
    io::{PipeReader, PipeWriter, pipe},
    ops::Range,
    sync::Arc,
    thread,
};

use onefold_backend::MemoryDisk;
use onefold_block::{
    Copies, Format, Received, SendWhat, Totals,
    check::{check, scrub_map},
    format::{catalogue::Volume, page::Table},
};
use onefold_core::{
    Block, BlockRead, BlockRef, Class, Disk, ExtentKind, Kind, Lba, Pba, Read, Result, Run,
};

use support::{Site, changes, content, formatted, opened, whole};

/// Blocks of a volume: three leaves of its map.
const BLOCKS: u64 = 3 * 288;

/// Blocks of a store.
const STORE_BLOCKS: u64 = 32_768;

fn site(id: u8) -> Site {
    formatted(&Format::new([id; 16], [7; 32], STORE_BLOCKS))
}

/// Closes a store; its check finds nothing wrong, and so many blocks that are lost.
fn end(site: Site, lost: u64) {
    assert_eq!(is_counted(&site.close()), lost);
}

/// Gives how many blocks are lost; nothing is wrong, and the catalogue counts for each map what it has.
fn is_counted(disk: &Arc<MemoryDisk>) -> u64 {
    let disk: Arc<dyn Disk> = disk.clone();
    let report = check(&disk, &mut |_| {}).unwrap();
    assert_eq!(report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    assert!(!report.notes.iter().any(|note| note.contains("counts")), "{:?}", report.notes);
    report.lost_addresses
}

/// Each block by itself; none where that is an error.
fn read(site: &Site, name: &str) -> Vec<Option<Block>> {
    let volume = site.volume(name);
    (0..volume.size() / 4096)
        .map(|lba| {
            let mut block = Block::zeroed_vec(1);
            block[0].0.fill(0xee);
            let mut reads = [BlockRead { first: Lba(lba), into: &mut block, result: Ok(()) }];
            volume.read(&mut reads);
            let [read] = reads;
            match read.result {
                Ok(()) => block.pop(),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                    None
                }
            }
        })
        .collect()
}

fn send(site: &Site, what: &SendWhat) -> Result<(Vec<u8>, Totals)> {
    let mut bytes = Vec::new();
    Copies::of(&site.store).send(what, &mut bytes).map(|totals| (bytes, totals))
}

fn lost_blocks(site: &Site, name: &str) -> u64 {
    let status = site.store.status();
    status.volumes.iter().find(|volume| volume.name == name).unwrap().lost_blocks
}

/// Flips a bit of each block of a disk that looks like this.
fn damage(disk: &MemoryDisk, looks: impl Fn(&[u8; 4096]) -> bool) {
    let mut hit = 0;
    for at in (0..STORE_BLOCKS).map(Pba) {
        let mut blocks = Block::zeroed_vec(1);
        let mut read = [Read::new(at, &mut blocks)];
        disk.read(&mut read);
        let [read] = read;
        if read.result.is_ok() && looks(&blocks[0].0) {
            blocks[0].0[700] ^= 1;
            let block = BlockRef { block: &blocks[0], class: Class::Data };
            disk.write(&[Run { at, blocks: &[block] }]).unwrap();
            hit += 1;
        }
    }
    assert!(hit > 0, "nothing was hit");
}

/// Damages where a content is stored.
fn damage_content(disk: &MemoryDisk, n: u64) {
    let bytes = content(n);
    damage(disk, |block| block[..] == bytes[..]);
}

/// True for a leaf of a map with this number.
fn is_leaf(block: &[u8; 4096], index: u64) -> bool {
    let is = |at: usize, bytes: &[u8]| block[at..at + bytes.len()] == *bytes;
    is(0, b"OFp1") && is(4, &[1, 0]) && is(24, &index.to_le_bytes())
}

/// Damages all leaves of maps with this number.
fn damage_leaf(disk: &MemoryDisk, index: u64) {
    damage(disk, |block| is_leaf(block, index));
}

/// Damages them but for the youngest.
fn damage_older_leaves(disk: &MemoryDisk, index: u64) {
    let youngest = std::cell::Cell::new(0);
    let birth = |block: &[u8; 4096]| u64::from_le_bytes(block[40..48].try_into().unwrap());
    for at in (0..STORE_BLOCKS).map(Pba) {
        let mut blocks = Block::zeroed_vec(1);
        disk.read(&mut [Read::new(at, &mut blocks)]);
        if is_leaf(&blocks[0].0, index) {
            youngest.set(youngest.get().max(birth(&blocks[0].0)));
        }
    }
    damage(disk, |block| is_leaf(block, index) && birth(block) < youngest.get());
}

fn skipping(what: SendWhat) -> SendWhat {
    SendWhat { skip_damaged: true, ..what }
}

/// Where errors are, as ranges.
fn lost(blocks: &[Option<Block>]) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for (lba, _) in (0..).zip(blocks).filter(|(_, block)| block.is_none()) {
        match found.last_mut() {
            Some(last) if last.end == lba => last.end += 1,
            _ => found.push(lba..lba + 1),
        }
    }
    found
}

/// What is no error is the same.
fn same_but_for_lost(one: &[Option<Block>], other: &[Option<Block>]) {
    assert_eq!(one.len(), other.len());
    for (lba, (one, other)) in one.iter().zip(other).enumerate() {
        if let (Some(one), Some(other)) = (one, other) {
            assert!(one.0 == other.0, "block {lba}");
        }
    }
}

/// A store with a snapshot `vm1@a` of which block 5 and the second leaf of the map can't be read, and
/// what it held.
fn damaged() -> (Site, Vec<Option<Block>>) {
    let here = site(1);
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    here.fill("vm1", 0, 0..10);
    here.fill("vm1", 300, 100..110);
    here.fill("vm1", 600, 200..210);
    here.snapshot("vm1@a");
    let before = read(&here, "vm1@a");
    let disk = here.close();
    damage_content(&disk, 5);
    damage_leaf(&disk, 1);
    (opened(disk), before)
}

/// The blocks that are lost of it.
const LOST: [Range<u64>; 2] = [5..6, 288..576];

#[test]
fn what_cannot_be_read_ends_a_stream_or_is_lost_where_it_is_received() {
    let (here, before) = damaged();
    assert_eq!(send(&here, &whole("vm1@a")).unwrap_err().kind(), Kind::Corrupt);
    let (stream, totals) = send(&here, &skipping(whole("vm1@a"))).unwrap();
    assert_eq!((totals.lost, totals.data), (1 + 288, 19));
    let there = site(2);
    let received = there.receive(&stream).unwrap();
    assert_eq!(received.totals, totals);
    for name in ["vm1", "vm1@a"] {
        let now = read(&there, name);
        assert_eq!(lost(&now), LOST, "{name}");
        same_but_for_lost(&now, &before);
    }
    assert_eq!(lost_blocks(&there, "vm1"), 289);
    // Clients are not told of holes, and what is lost is no new damage.
    let volume = there.volume("vm1");
    let extents = volume.extents(0, BLOCKS * 4096, 100).unwrap();
    let mut at = 0;
    for extent in extents {
        let blocks = at..at + extent.bytes / 4096;
        let meets = |lost: &Range<u64>| lost.start < blocks.end && blocks.start < lost.end;
        assert!(extent.kind == ExtentKind::Data || !LOST.iter().any(meets), "{blocks:?}");
        at = blocks.end;
    }
    drop(volume);
    let scrubbed = scrub_map(there.store.engine(), "vm1", &mut |_| {}, &mut || false).unwrap();
    assert_eq!((scrubbed.known_lost_blocks, scrubbed.lost_blocks), (289, 0));
    assert!(scrubbed.is_well());
    // Also after a restart.
    let there = opened(there.close());
    assert_eq!(lost(&read(&there, "vm1")), LOST);
    assert_eq!(lost_blocks(&there, "vm1"), 289);
    end(there, 289);
}

#[test]
fn lost_blocks_stay_lost_in_snapshots_clones_and_streams_until_they_are_written_or_trimmed() {
    let (here, _) = damaged();
    let (stream, _) = send(&here, &skipping(whole("vm1@a"))).unwrap();
    let (there, third) = (site(2), site(3));
    there.receive(&stream).unwrap();
    there.store.clone_volume("vm1@a", "clone").unwrap();
    let volume = there.volume("clone");
    assert_eq!(lost(&read(&there, "clone")), LOST);
    // A part of a lost block can't be written: the rest is not known.
    assert_eq!(volume.write(5 * 4096 + 7, &[1; 5]).unwrap_err().kind(), Kind::Corrupt);
    volume.write(300 * 4096, &content(77)).unwrap();
    volume.trim(400 * 4096, 76 * 4096).unwrap();
    volume.write_zeroes(500 * 4096, 3 * 4096, true).unwrap();
    drop(volume);
    there.snapshot("clone@b");
    let left = [5..6, 288..300, 301..400, 476..500, 503..576];
    for name in ["clone", "clone@b"] {
        let now = read(&there, name);
        assert_eq!(lost(&now), left, "{name}");
        assert_eq!(now[300].as_ref().unwrap().0[..], content(77)[..]);
        assert!([400, 475, 502].iter().all(|&lba: &usize| now[lba].as_ref().unwrap().is_zero()));
    }
    let count: u64 = left.iter().map(|range| range.end - range.start).sum();
    assert_eq!((lost_blocks(&there, "clone"), lost_blocks(&there, "vm1")), (count, 289));
    // Sent on, they are lost again, and no stream hides that.
    assert_eq!(send(&there, &whole("clone@b")).unwrap_err().kind(), Kind::Corrupt);
    let (onward, totals) = send(&there, &skipping(whole("clone@b"))).unwrap();
    assert_eq!(totals.lost, count);
    third.receive(&onward).unwrap();
    assert_eq!(lost(&read(&third, "clone@b")), left);
    // Changes alone say nothing of what was lost before.
    there.fill("clone", 5, 1000..1001);
    there.snapshot("clone@c");
    let (changed, totals) = send(&there, &changes("clone@b", "clone@c")).unwrap();
    assert_eq!((totals.data, totals.lost), (1, 0));
    third.receive(&changed).unwrap();
    assert_eq!(lost(&read(&third, "clone")), left[1..]);
    assert_eq!(lost(&read(&third, "clone@b")), left);
    end(third, count);
    // The clone shares the first leaf of its map.
    end(there, 289 + count - 1);
}

#[test]
fn changes_are_sent_past_damage_of_either_snapshot() {
    let here = site(1);
    here.store.create_volume("vm1", BLOCKS * 4096).unwrap();
    here.fill("vm1", 0, 0..10);
    here.fill("vm1", 300, 100..110);
    here.snapshot("vm1@a");
    let there = site(2);
    there.receive(&send(&here, &whole("vm1@a")).unwrap().0).unwrap();
    here.fill("vm1", 3, 400..401);
    here.fill("vm1", 305, 500..501);
    here.volume("vm1").trim(7 * 4096, 4096).unwrap();
    here.snapshot("vm1@b");
    let before = read(&here, "vm1@b");
    let disk = here.close();
    // The base has a page that can't be read: all blocks there are told as they are now, holes too.
    damage_older_leaves(&disk, 0);
    damage_content(&disk, 500);
    let here = opened(disk);
    assert!(send(&here, &changes("vm1@a", "vm1@b")).is_err());
    let (changed, totals) = send(&here, &skipping(changes("vm1@a", "vm1@b"))).unwrap();
    assert_eq!((totals.lost, totals.data, totals.holes), (1, 9, 279));
    there.receive(&changed).unwrap();
    let now = read(&there, "vm1@b");
    assert_eq!(lost(&now).as_slice(), std::slice::from_ref(&(305..306)));
    same_but_for_lost(&now, &before);
    end(there, 1);
}

#[test]
fn a_stream_with_lost_blocks_that_is_cut_off_goes_on() {
    let (here, before) = damaged();
    let mut there = site(2);
    let mut what = skipping(whole("vm1@a"));
    let (mut cuts, mut lost_by_then) = (0, 0);
    loop {
        let (stream, _) = send(&here, &what).unwrap();
        let Some(part) = stream.get(..stream.len().min(400 + 9000 * cuts)) else { unreachable!() };
        if part.len() == stream.len() {
            there.receive(&stream).unwrap();
            break;
        }
        assert_eq!(there.receive(part).unwrap_err().kind(), Kind::Io);
        cuts += 1;
        // Also what is being received is counted.
        let disk = there.close();
        let found = is_counted(&disk);
        if found > 0 {
            let other = damage::copy(&disk);
            count_lost(&other, "vm1@a", found + 5);
            let other: Arc<dyn Disk> = other;
            let notes = check(&other, &mut |_| {}).unwrap().notes;
            let expected = format!("the catalogue counts {}: ", found + 5);
            assert!(notes.iter().any(|note| note.contains(&expected)), "{notes:?}");
        }
        lost_by_then += found;
        there = opened(disk);
        what.resume = Copies::of(&there.store).receives().first().map(|state| state.token);
    }
    assert!(cuts > 3 && lost_by_then > 0, "{cuts}");
    let now = read(&there, "vm1@a");
    assert_eq!(lost(&now), LOST);
    same_but_for_lost(&now, &before);
    end(there, 289);
}

/// Sends by two pipes to a receiver that says what it has.
fn negotiate(here: &Site, there: &Site, what: &SendWhat) -> (Result<Totals>, Result<Received>) {
    let (stream_in, mut stream): (PipeReader, PipeWriter) = pipe().unwrap();
    let (answers_in, mut answers) = pipe().unwrap();
    let target = there.store.clone();
    let receiving = thread::spawn(move || {
        let copies = Copies::of(&target);
        let look = &mut |_| Ok(());
        copies.receive_or_negotiate(None, false, stream_in, &mut answers, &[2; 32], look)
    });
    let sent = Copies::of(&here.store).negotiate(what, &[1; 32], &mut stream, answers_in);
    drop(stream);
    (sent, receiving.join().unwrap())
}

#[test]
fn a_negotiated_stream_has_lost_blocks_too_also_of_what_the_receiver_has() {
    let (here, before) = damaged();
    let there = site(2);
    there.store.create_volume("other", BLOCKS * 4096).unwrap();
    there.fill("other", 0, 0..8);
    assert!(negotiate(&here, &there, &whole("vm1@a")).0.is_err());
    let (sent, received) = negotiate(&here, &there, &skipping(whole("vm1@a")));
    let totals = sent.unwrap();
    assert_eq!((totals.lost, totals.held, totals.data), (289, 7, 12));
    assert_eq!(received.unwrap().totals, totals);
    let now = read(&there, "vm1@a");
    assert_eq!(lost(&now), LOST);
    same_but_for_lost(&now, &before);
    end(there, 289);
}

/// Receivers of today know versions up to 4; those of which 2 was the last compared the same bytes.
#[test]
fn a_stream_of_a_newer_version_is_refused_before_anything_is_taken() {
    let (here, _) = damaged();
    let (stream, _) = send(&here, &skipping(whole("vm1@a"))).unwrap();
    assert_eq!(stream[15], 3);
    let there = site(2);
    for version in 5..=u8::MAX {
        let mut newer = stream.clone();
        newer[15] = version;
        let refused = there.receive(&newer).unwrap_err();
        assert_eq!(refused.kind(), Kind::Unsupported, "{version}");
        let why = "the stream is of a newer version of onefold send";
        assert!(refused.to_string().contains(why), "{version}: {refused}");
    }
    assert!(there.store.status().volumes.is_empty());
    there.receive(&stream).unwrap();
    end(there, 289);
}

/// Writes another count of lost blocks for the map that is called so.
fn count_lost(disk: &MemoryDisk, name: &str, lost: u64) {
    let root = damage::root(disk, Table::Maps, 0);
    let leaves = damage::pages(disk, Table::Maps, 0, &root);
    let mut found = 0;
    for (id, _) in leaves.into_iter().filter(|(id, _)| id.level == 0) {
        let root = damage::root(disk, Table::Maps, 0);
        let new = damage::forge(disk, &root, id, &mut |page| {
            for slot in 0..Table::Maps.per_leaf() {
                let map = Volume::get_shared(page, slot).unwrap();
                if let Some(mut map) = map.filter(|map| map.name == name) {
                    map.sharing.lost = lost;
                    map.set_shared(page, slot);
                    found += 1;
                }
            }
        });
        damage::forge_superblock(disk, |superblock| superblock.state.catalogue = new);
    }
    assert_eq!(found, 1, "{name}");
}

/// As programs leave it that do not know of the count, and as a repair may.
#[test]
fn a_check_notes_where_the_catalogue_counts_other_lost_blocks_than_a_map_has() {
    let (here, _) = damaged();
    let (stream, _) = send(&here, &skipping(whole("vm1@a"))).unwrap();
    let there = site(2);
    there.receive(&stream).unwrap();
    there.store.clone_volume("vm1@a", "clone").unwrap();
    there.fill("clone", 5, 1000..1001);
    there.store.create_volume("other", BLOCKS * 4096).unwrap();
    let disk = there.close();
    let notes = || {
        let disk: Arc<dyn Disk> = disk.clone();
        let report = check(&disk, &mut |_| {}).unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
        let mut notes = report.notes;
        notes.retain(|note| note.contains("lost"));
        notes.sort();
        notes
    };
    let lost_before =
        |name: &str, blocks: u64| format!("of volume '{name}' {blocks} blocks were lost before");
    assert_eq!(notes(), [lost_before("clone", 288), lost_before("vm1", 289)]);
    count_lost(&disk, "a", 290);
    count_lost(&disk, "clone", 0);
    count_lost(&disk, "other", 7);
    let differs = |map: &str, found: u64, counted: u64| {
        format!("of {map} {found} blocks are lost, and the catalogue counts {counted}: ")
    };
    let expected = [
        differs("snapshot 'vm1@a'", 289, 290),
        differs("volume 'clone'", 288, 0),
        differs("volume 'other'", 0, 7),
        lost_before("vm1", 289),
    ];
    let found = notes();
    assert!(
        found.len() == 4 && found.iter().zip(&expected).all(|(one, begin)| one.starts_with(begin)),
        "{found:?}"
    );
}
