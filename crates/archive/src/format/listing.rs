//! The listing of a tree: its entries one after the other, each behind its length. Parents come
//! before what is in them, names of one directory in the order of their bytes, and what is in a
//! directory directly behind it.

use std::cmp::Ordering;

use onefold_core::{
    Result,
    tree::{Entry, What},
};

use super::bytes::{Reader, Writer, corrupt};

/// Longest entry: more than a file with a hundred thousand holes.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Attributes of an entry at most: their names have 64 KiB on Linux.
const ATTRIBUTES_MAX: usize = 32 << 10;

/// The number of an owner or a group that the system takes for none; no file has it.
pub(crate) const NOBODY: u32 = u32::MAX;

/// How deep an entry may lie below the root.
pub const LEVELS_MAX: usize = 4096;

/// Memory for the targets of hard links that wait to be found.
const LINK_BYTES: usize = 4 << 20;

/// The place of two paths in a listing.
#[must_use]
pub(crate) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let parts = |path| <[u8]>::split(path, |&byte| byte == b'/');
    parts(one).cmp(parts(other))
}

/// Checks, entry by entry, that a listing is one that a walk can give: the root first, names of a
/// directory strictly rising, so that no path comes twice, each entry in a directory that came
/// before, none deeper than [`LEVELS_MAX`]. Holds one path.
#[derive(Debug, Default)]
pub struct Order {
    last: Vec<u8>,
    is_directory: bool,
    has_begun: bool,
}

impl Order {
    /// The next entry.
    ///
    /// # Errors
    /// `Corrupt`, with the path.
    pub fn next(&mut self, entry: &Entry) -> Result<()> {
        let path = &entry.path[..];
        let bad = |why: &str| {
            corrupt(format!(
                "the listing of the tree has '{}' {why}",
                String::from_utf8_lossy(path)
            ))
        };
        if !self.has_begun {
            if !path.is_empty() || entry.what != What::Directory {
                return Err(bad("before its root"));
            }
        } else if !entry.is_safe() {
            return Err(bad("outside of the tree"));
        } else if path.split(|&byte| byte == b'/').count() > LEVELS_MAX {
            return Err(bad(&format!("more than {LEVELS_MAX} levels deep")));
        } else if compare(&self.last, path) != Ordering::Less {
            return Err(bad(&format!(
                "behind '{}', twice or out of order",
                String::from_utf8_lossy(&self.last)
            )));
        } else if !self.is_inside(path) {
            return Err(bad("in what is no directory that came before"));
        }
        self.last.clear();
        self.last.extend_from_slice(path);
        (self.is_directory, self.has_begun) = (entry.what == What::Directory, true);
        Ok(())
    }

    /// True when the parent is the last entry, or one of the directories that it lies in.
    fn is_inside(&self, path: &[u8]) -> bool {
        let Some(at) = path.iter().rposition(|&byte| byte == b'/') else { return true };
        let parent = &path[..at];
        match self.last.strip_prefix(parent) {
            Some([]) => self.is_directory,
            Some([b'/', ..]) => true,
            _ => false,
        }
    }
}

/// Checks that hard links name entries that came before them and are no directories. Since entries
/// and targets have one order, it holds a part of the targets only, and looks for these while the
/// listing is read once more; it wants another pass as long as targets are left.
#[derive(Debug, Default)]
pub struct Links {
    /// Targets that are looked for in this pass, in order, each with its link.
    wanted: Vec<(Vec<u8>, Vec<u8>)>,
    found: usize,
    /// Targets to look for in the next pass.
    held: Vec<(Vec<u8>, Vec<u8>)>,
    held_bytes: usize,
    /// Links that were looked at, in this pass and in earlier ones.
    seen: u64,
    taken: u64,
}

impl Links {
    /// The next entry of a pass.
    ///
    /// # Errors
    /// `Corrupt`, with the path of the link.
    pub fn next(&mut self, entry: &Entry) -> Result<()> {
        while let Some((target, link)) = self.wanted.get(self.found) {
            match compare(target, &entry.path) {
                Ordering::Greater => break,
                Ordering::Equal if entry.what != What::Directory => self.found += 1,
                _ => return Err(nowhere(link)),
            }
        }
        let What::HardLink { target } = &entry.what else { return Ok(()) };
        if compare(target, &entry.path) != Ordering::Less {
            return Err(nowhere(&entry.path));
        }
        self.seen += 1;
        if self.seen > self.taken && (self.held.is_empty() || self.held_bytes < LINK_BYTES) {
            self.taken = self.seen;
            self.held_bytes += target.len() + entry.path.len() + 64;
            self.held.push((target.clone(), entry.path.clone()));
        }
        Ok(())
    }

    /// The end of a pass; true when another one is wanted.
    ///
    /// # Errors
    /// `Corrupt`, with the path of a link whose target was not found.
    pub fn end_pass(&mut self) -> Result<bool> {
        if let Some((_, link)) = self.wanted.get(self.found) {
            return Err(nowhere(link));
        }
        self.wanted = std::mem::take(&mut self.held);
        self.wanted.sort_unstable_by(|(one, _), (other, _)| compare(one, other));
        (self.found, self.held_bytes, self.seen) = (0, 0, 0);
        Ok(!self.wanted.is_empty())
    }
}

fn nowhere(link: &[u8]) -> onefold_core::Error {
    corrupt(format!(
        "the listing of the tree has a hard link '{}' to what is no file before it",
        String::from_utf8_lossy(link)
    ))
}

/// Appends an entry.
pub fn encode(entry: &Entry, out: &mut Vec<u8>) {
    let mut w = Writer::default();
    w.bytes(&entry.path)
        .u32(entry.mode)
        .u32(entry.uid)
        .u32(entry.gid)
        .u64(entry.seconds as u64)
        .u32(entry.nanoseconds);
    w.u32(entry.attributes.len() as u32);
    for (name, value) in &entry.attributes {
        w.bytes(name).bytes(value);
    }
    match &entry.what {
        What::Directory => w.u8(1),
        What::File { bytes, data } => {
            w.u8(2).u64(*bytes).u32(data.len() as u32);
            data.iter().for_each(|(at, length)| {
                w.u64(*at).u64(*length);
            });
            &mut w
        }
        What::Symlink { target } => w.u8(3).bytes(target),
        What::HardLink { target } => w.u8(4).bytes(target),
        What::Fifo => w.u8(5),
        What::Socket => w.u8(6),
        What::CharacterDevice(device) => w.u8(7).u64(*device),
        What::BlockDevice(device) => w.u8(8).u64(*device),
    };
    out.extend_from_slice(&(w.0.len() as u32).to_le_bytes());
    out.extend_from_slice(&w.0);
}

/// Takes whole entries off the front of `held`, which grows as a listing is read.
///
/// # Errors
/// `Corrupt`.
pub fn decode(held: &mut Vec<u8>, each: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
    let mut taken = 0;
    while let Some(length) = held.get(taken..taken + 4) {
        let length = Reader(length, None).u32()? as usize;
        if length > ENTRY_BYTES_MAX {
            return Err(corrupt("an entry of the listing can't be so long"));
        }
        let Some(bytes) = held.get(taken + 4..taken + 4 + length) else { break };
        each(one(bytes)?)?;
        taken += 4 + length;
    }
    held.drain(..taken);
    Ok(())
}

fn one(bytes: &[u8]) -> Result<Entry> {
    let r = &mut Reader(bytes, None);
    let path = r.bytes()?.to_vec();
    let (mode, uid, gid, seconds, nanoseconds) =
        (r.u32()?, r.u32()?, r.u32()?, r.u64()? as i64, r.u32()?);
    if [uid, gid].contains(&NOBODY) {
        return Err(corrupt("an entry of the listing has an owner or group that is none"));
    }
    let mut attributes = Vec::new();
    let count = r.count(8, 0)?;
    if count > ATTRIBUTES_MAX {
        return Err(corrupt("an entry of the listing can't have so many attributes"));
    }
    for _ in 0..count {
        attributes.push((r.bytes()?.to_vec(), r.bytes()?.to_vec()));
    }
    let what = match r.u8()? {
        1 => What::Directory,
        2 => {
            let bytes = r.u64()?;
            let (mut data, mut end) = (Vec::new(), 0);
            for _ in 0..r.count(16, 0)? {
                let (at, length) = (r.u64()?, r.u64()?);
                let inside = at >= end && at.checked_add(length).is_some_and(|end| end <= bytes);
                if !inside {
                    return Err(corrupt("a file of the listing has data outside of it"));
                }
                end = at + length;
                data.push((at, length));
            }
            What::File { bytes, data }
        }
        3 => What::Symlink { target: r.bytes()?.to_vec() },
        4 => What::HardLink { target: r.bytes()?.to_vec() },
        5 => What::Fifo,
        6 => What::Socket,
        7 => What::CharacterDevice(r.u64()?),
        8 => What::BlockDevice(r.u64()?),
        other => return Err(corrupt(format!("the listing has an entry of unknown kind {other}"))),
    };
    r.end()?;
    Ok(Entry { path, what, mode, uid, gid, seconds, nanoseconds, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_read_as_it_was_written() {
        let entry = |path: &str, what| Entry {
            path: path.into(),
            what,
            mode: 0o4755,
            uid: 1,
            gid: 2,
            seconds: -5,
            nanoseconds: 7,
            attributes: vec![(b"user.a".to_vec(), vec![0, 1, 2])],
        };
        let all = [
            entry("", What::Directory),
            entry("a", What::File { bytes: 100, data: vec![(0, 10), (50, 50)] }),
            entry("b", What::Symlink { target: b"/x".to_vec() }),
            entry("c", What::HardLink { target: b"a".to_vec() }),
            entry("d", What::Fifo),
            entry("e", What::BlockDevice(7)),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|entry| encode(entry, &mut bytes));
        let (mut held, mut found) = (Vec::new(), Vec::new());
        for part in bytes.chunks(7) {
            held.extend_from_slice(part);
            decode(&mut held, &mut |entry| {
                found.push(entry);
                Ok(())
            })
            .unwrap();
        }
        assert!(held.is_empty());
        assert_eq!(found, all);
        assert!(all.iter().all(Entry::is_safe));
        for (uid, gid) in [(u32::MAX, 0), (0, u32::MAX)] {
            let mut bytes = Vec::new();
            encode(&Entry { uid, gid, ..entry("f", What::Fifo) }, &mut bytes);
            assert!(decode(&mut bytes, &mut |_| Ok(())).is_err());
        }
        for bad in ["/a", "a//b", "../a", "a/..", ".", "a\0"] {
            assert!(!entry(bad, What::Fifo).is_safe(), "{bad}");
        }
    }

    fn named(path: &str, what: What) -> Entry {
        Entry {
            path: path.into(),
            what,
            mode: 0,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            attributes: Vec::new(),
        }
    }

    #[test]
    fn rule_05_the_order_of_a_walk_is_the_only_one() {
        let mut order = Order::default();
        // '-' and '.' come before '/', and still what is in a directory comes directly behind it.
        for path in ["", "a", "a/b", "a/b/c", "a/d", "a-b", "a.b", "b"] {
            order.next(&named(path, What::Directory)).unwrap();
        }
        for bad in ["b", "a", "a/e", "c/d", "", "../c"] {
            let mut order = Order::default();
            order.next(&named("", What::Directory)).unwrap();
            order.next(&named("a", What::Directory)).unwrap();
            order.next(&named("b", What::Fifo)).unwrap();
            order.next(&named(bad, What::Fifo)).unwrap_err();
        }
    }

    #[test]
    fn rule_05_targets_of_hard_links_are_looked_for_in_as_many_passes_as_memory_asks_for() {
        let long = "x".repeat(100_000);
        let mut all = vec![named("", What::Directory), named("a", What::Directory)];
        all.extend((100..200).map(|n| named(&format!("a/{n}{long}"), What::Fifo)));
        all.extend((100..200).map(|n| {
            named(
                &format!("b{n}"),
                What::HardLink { target: format!("a/{}{long}", 299 - n).into() },
            )
        }));
        let passes = |all: &[Entry]| -> Result<usize> {
            let (mut links, mut passes) = (Links::default(), 0);
            loop {
                passes += 1;
                all.iter().try_for_each(|entry| links.next(entry))?;
                if !links.end_pass()? {
                    return Ok(passes);
                }
            }
        };
        assert!(passes(&all).unwrap() > 3);
        for bad in ["a", "", "a/none", "z", "../a"] {
            let mut all = all.clone();
            all.push(named("c", What::HardLink { target: bad.into() }));
            passes(&all).unwrap_err();
        }
    }
}
