//! Checksums that are made right again over changed files, so that the bytes behind them are
//! reached. Offsets are those of `docs/archive-format.md`.

use onefold_core::checksum;

use super::{files::MemoryFiles, good::identity};

/// Mends all files. A file whose lengths lead astray stays as it is.
pub(super) fn all(files: &MemoryFiles) {
    let all = files.all();
    if let Some(leaves) = all.get("tables") {
        for name in all.keys().filter(|name| name.starts_with("snapshot-")) {
            files.change(name, |bytes| directory(bytes, leaves));
        }
    }
    let number = |name: &str| {
        name.rsplit('-').next().and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(0)
    };
    for name in all.keys() {
        let kind = name.split('-').next().unwrap_or_default();
        files.change(name, |bytes| match kind {
            "label" | "maps" | "node" => bytes.chunks_exact_mut(4096).for_each(seal_end),
            "segment" if bytes.starts_with(b"ONEFCOLM") => column(bytes, number(name) as u32),
            "snapshot" => snapshot(bytes),
            "segment" => segment(bytes),
            "index" => index(bytes, number(name)),
            "counts" => counts(bytes),
            "vouched" => {
                if let Some(bytes) = bytes.get_mut(..24) {
                    seal_end(bytes);
                }
            }
            _ => {}
        });
    }
    // A log begins with the checksum of the last frame that its snapshot has.
    for name in all.keys().filter(|name| name.starts_with("log-")) {
        let snapshot =
            files.all().get(&name.replace("log-", "snapshot-")).cloned().unwrap_or_default();
        let before = u64_at(&snapshot, 48).unwrap_or(0);
        files.change(name, |bytes| log(bytes, before));
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The last eight bytes are the checksum of those before; empty pages stay empty.
fn seal_end(page: &mut [u8]) {
    let at = page.len() - 8;
    if page.iter().any(|byte| *byte != 0) {
        let checksum = identity().checksum(&page[..at]);
        page[at..].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn snapshot(bytes: &mut [u8]) {
    let length = u64_at(bytes, 16).and_then(|length| usize::try_from(length).ok());
    if let Some(body) = length.and_then(|length| bytes.get(40..40usize.checked_add(length)?)) {
        let checksum = identity().checksum(body);
        bytes[24..32].copy_from_slice(&checksum.to_le_bytes());
    }
    if let Some(header) = bytes.get_mut(..40) {
        seal_end(header);
    }
    let begin = length.and_then(|length| length.checked_add(40));
    if let Some(work) = begin.and_then(|begin| bytes.get_mut(begin..begin.checked_add(72)?)) {
        seal_end(work);
    }
}

/// The directory of a snapshot: for each leaf of three tables the checksum of its pages.
fn directory(bytes: &mut [u8], leaves: &[u8]) {
    let mut at = 40 + 32;
    for _ in 0..3 {
        let Some(count) = u32_at(bytes, at) else { return };
        at += 4;
        for _ in 0..count {
            let Some((page, pages)) = u32_at(bytes, at).zip(u32_at(bytes, at + 4)) else { return };
            let from = page.saturating_mul(4096);
            let pages = leaves.get(from..from.saturating_add(pages.saturating_mul(4096)));
            let checksum = pages.map(|pages| identity().checksum(pages));
            if let (Some(checksum), Some(to)) = (checksum, bytes.get_mut(at + 8..at + 16)) {
                to.copy_from_slice(&checksum.to_le_bytes());
            }
            at += 16;
        }
    }
}

/// The frames of a log, each with the checksum of the one before.
fn log(bytes: &mut [u8], mut before: u64) {
    let mut at = 0;
    while let Some(length) = u32_at(bytes, at + 4)
        && u32_at(bytes, at) == Some(0x4c46_4e4f)
        && let Some(frame) = bytes.get_mut(at..at + 40 + length)
    {
        frame[24..32].copy_from_slice(&before.to_le_bytes());
        frame[32..40].fill(0);
        before = identity().checksum(frame);
        frame[32..40].copy_from_slice(&before.to_le_bytes());
        at += (40 + length).next_multiple_of(64);
    }
}

/// A column of a segment: its header, and the checksum behind each unit, which is seeded with where
/// it belongs.
fn column(bytes: &mut [u8], segment: u32) {
    let number = bytes.get(28).copied().unwrap_or_default();
    if let Some(header) = bytes.get_mut(..4096) {
        seal_end(header);
    }
    for (row, unit) in
        (0u64..).zip(bytes.get_mut(4096..).unwrap_or_default().chunks_exact_mut(4096 + 8))
    {
        if unit.iter().any(|byte| *byte != 0) {
            let place = (u64::from(segment) << 40 | u64::from(number) << 32 | row)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let checksum = checksum::fast(identity().key ^ place, &unit[..4096]);
            unit[4096..].copy_from_slice(&checksum.to_le_bytes());
        }
    }
}

/// The metadata of all containers, and their groups.
fn segment(bytes: &mut [u8]) {
    for at in (0..bytes.len()).step_by(4096) {
        if bytes[at..].starts_with(b"ONEFCONT") {
            container(&mut bytes[at..]);
        }
    }
}

/// The checksums of a container.
pub(super) fn container(bytes: &mut [u8]) {
    let Some((groups, length)) = u32_at(bytes, 44).zip(u32_at(bytes, 48)) else { return };
    for entry in (128..bytes.len().min(length)).step_by(24).take(groups.min(256)) {
        let stored = u32_at(bytes, entry)
            .zip(u32_at(bytes, entry + 4))
            .and_then(|(at, stored)| bytes.get(at..at.checked_add(stored)?));
        let checksum = stored.map(|stored| identity().checksum(stored));
        if let (Some(checksum), Some(place)) = (checksum, bytes.get_mut(entry + 16..entry + 24)) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
    }
    if let Some(metadata) = bytes.get_mut(..length).filter(|metadata| metadata.len() >= 128) {
        metadata[120..128].fill(0);
        let checksum = identity().checksum(metadata);
        metadata[120..128].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Pages of an index file: the number of each is part of what is sealed, and stays as it is.
fn index(bytes: &mut [u8], file: u64) {
    for page in bytes.chunks_exact_mut(4096) {
        let checksum = identity().checksum(&page[8..]) ^ file.rotate_left(32);
        page[..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn counts(bytes: &mut [u8]) {
    if bytes.starts_with(b"ONEFCNTP") {
        return counts_in_pages(bytes);
    }
    let mut at = 16;
    while let Some(length) = u32_at(bytes, at)
        && let Some(checksum) =
            bytes.get(at + 12..at + 12 + length).map(|block| identity().checksum(block))
    {
        bytes[at + 4..at + 12].copy_from_slice(&checksum.to_le_bytes());
        at += 12 + length;
        if length == 0 {
            return;
        }
    }
}

/// The directory of pages and the header. Checksums of pages are in the directory, mostly compressed, and
/// stay: a page that was changed is refused.
fn counts_in_pages(bytes: &mut [u8]) {
    if let Some(at) = u64_at(bytes, 16)
        && let Some(length) = u32_at(bytes, 24)
        && let Some(directory) =
            usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..length))
    {
        let checksum = identity().checksum(directory);
        bytes[32..40].copy_from_slice(&checksum.to_le_bytes());
    }
    if let Some(header) = bytes.get_mut(..48) {
        seal_end(header);
    }
}
