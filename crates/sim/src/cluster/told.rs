//! Operations in few words, for who reads what happened.

use onefold_core::object::{Change, Guard};

pub(super) fn short_guard(guard: &Guard) -> String {
    match guard {
        Guard::Omap(key, value) => {
            format!("{}=={:04x}", short_key(key), onefold_core::checksum::fast(0, value) as u16)
        }
        other => format!("{other:?}"),
    }
}

pub(super) fn short_change(change: &Change) -> String {
    match change {
        Change::Write(at, bytes) => format!("write {at}+{}", bytes.len()),
        Change::Full(bytes) => format!("full {}", bytes.len()),
        Change::Overwrite(bytes) => format!("overwrite {}", bytes.len()),
        Change::SetOmap(pairs) => {
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(key, value)| {
                    format!(
                        "{}={:04x}",
                        short_key(key),
                        onefold_core::checksum::fast(0, value) as u16
                    )
                })
                .collect();
            format!("set {}", pairs.join(","))
        }
        Change::DropOmap(keys) => {
            format!("drop {}", keys.iter().map(|key| short_key(key)).collect::<Vec<_>>().join(","))
        }
        other => format!("{other:?}"),
    }
}

fn short_key(key: &[u8]) -> String {
    use onefold_cluster::format::key as keys;
    if let Some(offset) = keys::offset(key) {
        format!("@{offset}")
    } else if let Some((offset, stamp)) = keys::parse_pending(key) {
        format!("P@{offset}/{:x}", stamp.0)
    } else if let Some(reference) = keys::parse_reference(key) {
        format!("ref {}@{}/{:x}", reference.object, reference.offset, reference.stamp.0)
    } else if let Some(reference) = keys::parse_attempt(key) {
        format!("attempt {}@{}/{:x}", reference.object, reference.offset, reference.stamp.0)
    } else if let Some((object, stamp)) = keys::parse_listed(key) {
        format!("listed {object}/{:x}", stamp.0)
    } else {
        String::from_utf8_lossy(key).escape_debug().to_string()
    }
}
