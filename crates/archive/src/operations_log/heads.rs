//! Heads: hashes of all frames, by which a client that saw the archive earlier finds out whether the archive
//! goes on from there.
//!
//! The head behind frame *n* is a hash of the head before and of the frame. A snapshot of the tables has the
//! head of its own place, sealed with the tables. The frames before a snapshot are gone; the file `heads` has
//! their hashes, and these lead a client from an older head to the snapshot's head. Nobody can make hashes
//! that lead there from a head of another history, so the file needs no seal ([decision
//! 79](../../../../docs/decisions/0079-clients-remember-heads.md)).
//!
//! *Crash argument:* a checkpoint writes the hashes of its log and syncs them before it writes the
//! snapshot that needs them. The number of a frame gives the place of its hash, and the snapshot before
//! needs hashes in other places only. So a crash may cut the writing off anywhere: the next checkpoint
//! writes the same hashes.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Kind, Result, checksum};
use onefold_seal::{Head, Mark};

use crate::{
    format::{Identity, label::Label, log_reader::PIECE_BYTES, names::HEADS},
    settings::Settings,
    tables::Tables,
};

/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// The file has at least the hashes of so many last frames before the snapshot, as far as there were so many.
pub(super) const KEPT: u64 = 1 << 20;

/// Places of the file. Twice as many, so that those of a log that is not yet in a snapshot overwrite none
/// that the snapshot needs.
const PLACES: u64 = 2 * KEPT;

/// The first bytes that are hashed into the head of a beginning.
const BEGINNING: &[u8] = b"onefold archive 2026-11-29 the history begins";

/// A hash of a frame.
pub(super) type FrameHash = [u8; HASH_BYTES];

fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    checksum::chunk_name(&[0; 32], bytes)
}

/// The first head of an archive that keeps heads from now on, behind the frame with this number and checksum;
/// of a new archive both are 0.
pub(super) fn beginning(identity: &Identity, number: u64, chain: u64) -> [u8; HASH_BYTES] {
    let numbers = [number.to_le_bytes(), chain.to_le_bytes()].concat();
    hash(&[BEGINNING, &identity.id, &numbers].concat())
}

/// Takes a frame, with all of its bytes, into the head of the tables to which it was applied, and returns the
/// frame's hash. `None`, without a change, in an archive that keeps no heads.
pub(super) fn take(tables: &mut Tables, frame: &[u8]) -> Option<FrameHash> {
    if !tables.heads {
        return None;
    }
    let frame = hash(frame);
    tables.head = after(&tables.head, &frame);
    Some(frame)
}

fn after(head: &[u8; HASH_BYTES], frame: &FrameHash) -> [u8; HASH_BYTES] {
    hash(&[&head[..], frame].concat())
}

/// The head of these tables, at the last change that they have.
#[must_use]
pub fn of(tables: &Tables) -> Head {
    let mark = match tables.heads {
        true => Mark::History(tables.head),
        false => Mark::Change(tables.chain),
    };
    Head { number: tables.sequence, mark }
}

/// Tells the opener of a sealed archive the head of these tables, whose last frame is durable.
pub(super) fn saw(settings: &Settings, label: &Label, tables: &Tables) {
    let opener = settings.opener.of().filter(|_| label.sealed.is_some());
    if let Some(opener) = opener {
        opener.saw_head(&label.id, &of(tables));
    }
}

/// True when the tables have this head. A head that a client saw before the archive kept heads is the
/// checksum of a frame.
pub(super) fn is_of(tables: &Tables, head: &Head) -> bool {
    tables.sequence == head.number
        && match head.mark {
            Mark::History(hash) => tables.heads && tables.head == hash,
            Mark::Change(checksum) => tables.chain == checksum,
        }
}

/// Writes the hashes of the last frames up to number `last`. On return they are durable, but for the file's
/// name.
pub(super) fn write(files: &dyn Files, last: u64, hashes: &[FrameHash]) -> Result<()> {
    let file = match files.open(HEADS) {
        Err(error) if error.kind() == Kind::NotFound => files.create(HEADS),
        opened => opened,
    }?;
    let mut next = last + 1 - hashes.len() as u64;
    let mut left = hashes;
    while !left.is_empty() {
        let (at, n) = run(next, left.len() as u64);
        let (some, rest) = left.split_at(n);
        file.write_at(at, some.as_flattened())?;
        (next, left) = (next + n as u64, rest);
    }
    file.sync()
}

/// The byte at which the hash of this frame is, and how many of the next `most` stand one behind the other.
fn run(number: u64, most: u64) -> (u64, usize) {
    let place = number % PLACES;
    let n = most.min(PLACES - place).min((PIECE_BYTES / HASH_BYTES) as u64);
    (place * HASH_BYTES as u64, n as usize)
}

/// The result of comparing tables with a head that a client saw earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// The tables descend from the head.
    Descends,
    /// The tables do not descend from the head, or nothing shows that they do.
    Differs,
    /// So many changes came since that the file does not have the hashes of all.
    TooLate(u64),
}

/// Compares the tables of a snapshot with a head whose number is not higher than theirs.
///
/// # Errors
/// The errors of the system.
pub(super) fn compare(files: &dyn Files, tables: &Tables, seen: &Head) -> Result<Compared> {
    let changes = tables.sequence - seen.number;
    let head = match seen.mark {
        _ if changes == 0 => {
            return Ok(if is_of(tables, seen) { Compared::Descends } else { Compared::Differs });
        }
        // The archive kept no heads then: the number alone tells.
        Mark::Change(_) => return Ok(Compared::Descends),
        Mark::History(_) if !tables.heads => return Ok(Compared::Differs),
        Mark::History(_) if changes > KEPT => return Ok(Compared::TooLate(changes)),
        Mark::History(head) => head,
    };
    let file = match files.open(HEADS) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(Compared::Differs),
        opened => opened?,
    };
    let led = leads_to(&file, head, (seen.number + 1, tables.sequence))?;
    Ok(if led == Some(tables.head) { Compared::Descends } else { Compared::Differs })
}

/// The head to which the hashes of these frames lead; `None` where the file lacks one of them.
fn leads_to(
    file: &Arc<dyn File>,
    mut head: [u8; HASH_BYTES],
    (first, last): (u64, u64),
) -> Result<Option<[u8; HASH_BYTES]>> {
    let mut next = first;
    while next <= last {
        let (at, n) = run(next, last + 1 - next);
        let mut bytes = vec![0; n * HASH_BYTES];
        if file.read_at(at, &mut bytes)? < bytes.len() {
            return Ok(None);
        }
        head = bytes.as_chunks().0.iter().fold(head, |head, frame| after(&head, frame));
        next += n as u64;
    }
    Ok(Some(head))
}

/// The error of an archive whose last change is `found`, where change `seen` was seen here.
pub(super) fn older(found: u64, seen: u64) -> Error {
    refused(format!(
        "it ends with change {found}, and change {seen} was seen here: an older state of it was put back, and \
         what was stored since is missing"
    ))
}

/// The error of an archive that does not descend from change `seen` as it was seen here.
pub(super) fn other_history(seen: u64) -> Error {
    refused(format!(
        "its history is not the one that was seen here up to change {seen}: an older state was put back and \
         changed since, or others are shown another history, or the file `{HEADS}` was damaged"
    ))
}

fn refused(why: String) -> Error {
    let way = "--accept-older takes it as it is, if you put it back yourself or know why";
    Error::new(Kind::Denied, format!("{why}; {way}"))
}

#[cfg(test)]
mod tests {
    use onefold_testbed::{Rng, VirtualFiles, files::Layout};

    use super::*;

    fn frame(number: u64) -> FrameHash {
        hash(&number.to_le_bytes())
    }

    /// Tables at a change, and what a client remembers of it.
    fn at(number: u64, head: [u8; HASH_BYTES]) -> (Tables, Head) {
        let tables = Tables { sequence: number, heads: true, head, ..Tables::default() };
        let seen = of(&tables);
        (tables, seen)
    }

    #[test]
    fn rule_44_whoever_saw_a_head_finds_the_next_ones_also_where_the_file_begins_anew() {
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        let (first, last) = (PLACES - 5, PLACES + 7);
        let mut all = vec![at(first - 1, [3; HASH_BYTES])];
        for number in first..=last {
            let before = all.last().unwrap().0.head;
            all.push(at(number, after(&before, &frame(number))));
        }
        // In two checkpoints; a third one was cut off, and is made again.
        let hashes: Vec<FrameHash> = (first..=last).map(frame).collect();
        write(&files, PLACES - 2, &hashes[..4]).unwrap();
        write(&files, last, &hashes[4..]).unwrap();
        write(&files, last, &hashes[4..]).unwrap();
        let now = &all.last().unwrap().0;
        for (_, seen) in &all {
            assert_eq!(compare(&files, now, seen).unwrap(), Compared::Descends, "{seen}");
            let other = Head { mark: Mark::History([4; HASH_BYTES]), ..*seen };
            assert_eq!(compare(&files, now, &other).unwrap(), Compared::Differs, "{seen}");
        }
        // A fork has other hashes, or none.
        write(&files, last, &[frame(0)]).unwrap();
        assert_eq!(compare(&files, now, &all[3].1).unwrap(), Compared::Differs);
        files.remove(HEADS).unwrap();
        assert_eq!(compare(&files, now, &all[3].1).unwrap(), Compared::Differs);
        let long_ago = Head { number: last - KEPT - 1, ..all[3].1 };
        assert_eq!(compare(&files, now, &long_ago).unwrap(), Compared::TooLate(KEPT + 1));
    }

    #[test]
    fn rule_44_a_head_from_before_heads_were_kept_compares_the_last_change_alone() {
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        let (mut tables, _) = at(9, [3; HASH_BYTES]);
        tables.chain = 5;
        let seen = |number, checksum| Head { number, mark: Mark::Change(checksum) };
        let compared = |tables: &Tables, seen| compare(&files, tables, &seen).unwrap();
        assert_eq!(compared(&tables, seen(9, 5)), Compared::Descends);
        assert_eq!(compared(&tables, seen(9, 6)), Compared::Differs);
        assert_eq!(compared(&tables, seen(8, 6)), Compared::Descends);
        // An archive that kept heads once keeps them.
        let head = of(&tables);
        tables.heads = false;
        assert_eq!(compared(&tables, head), Compared::Differs);
        tables.sequence = 10;
        assert_eq!(compared(&tables, head), Compared::Differs);
    }
}
