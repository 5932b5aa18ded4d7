//! Lines of text.

use std::fmt::Write;

use crate::format::page::Pointer;

/// Adds a line. Writing to memory can't fail.
pub(super) fn line(out: &mut String, text: impl std::fmt::Display) {
    let _ = writeln!(out, "{text}");
}

/// A name and its value, aligned.
pub(super) fn field(out: &mut String, name: &str, value: impl std::fmt::Display) {
    line(out, format_args!("  {name:<16} {value}"));
}

/// A pointer for people.
pub(super) fn pointer_text(pointer: &Pointer) -> String {
    if pointer.in_place {
        return format!("block {} in place, since window {}", pointer.address, pointer.birth);
    }
    format!(
        "block {}, window {}, checksum {:016x}",
        pointer.address, pointer.birth, pointer.checksum
    )
}
