//! The listing of a tree: its entries one after the other, each behind its length. Parents come before what is in them.

use onefold_core::{
    Result,
    tree::{Entry, What},
};

use super::bytes::{Reader, Writer, corrupt};

/// Longest entry: more than a file with a hundred thousand holes.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Attributes of an entry at most: their names have 64 KiB on Linux.
const ATTRIBUTES_MAX: usize = 32 << 10;

/// Appends an entry.
pub fn encode(entry: &Entry, out: &mut Vec<u8>) {
    let mut w = Writer::default();
    w.bytes(&entry.path).u32(entry.mode).u32(entry.uid).u32(entry.gid).u64(entry.seconds as u64).u32(entry.nanoseconds);
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

/// The entry that `held` begins with, and its bytes; `None` when more must be read for it.
///
/// # Errors
/// `Corrupt`.
pub fn first(held: &[u8]) -> Result<Option<(Entry, usize)>> {
    let Some(length) = held.get(..4) else { return Ok(None) };
    let length = Reader(length, None).u32()? as usize;
    if length > ENTRY_BYTES_MAX {
        return Err(corrupt("an entry of the listing can't be so long"));
    }
    held.get(4..4 + length).map(|bytes| Ok((one(bytes)?, 4 + length))).transpose()
}

fn one(bytes: &[u8]) -> Result<Entry> {
    let r = &mut Reader(bytes, None);
    let path = r.bytes()?.to_vec();
    let (mode, uid, gid, seconds, nanoseconds) = (r.u32()?, r.u32()?, r.u32()?, r.u64()? as i64, r.u32()?);
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
            while let Some((entry, bytes)) = first(&held).unwrap() {
                found.push(entry);
                held.drain(..bytes);
            }
        }
        assert!(held.is_empty());
        assert_eq!(found, all);
        assert!(all.iter().all(Entry::is_safe));
        for bad in ["/a", "a//b", "../a", "a/..", ".", "a\0"] {
            assert!(!entry(bad, What::Fifo).is_safe(), "{bad}");
        }
    }
}
