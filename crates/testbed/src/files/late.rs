//! A write whose process died while it was on its way, and that the medium shows later, as a mirror does
//! whose other half is read after a crash.

use super::{Change, PAGE, State, VirtualFiles};

/// What is on its way.
#[derive(Default)]
pub(super) struct Late {
    /// The next write to a file whose name begins so is on its way when its process dies; and whether it
    /// is ever shown.
    armed: Option<(String, bool)>,
    write: Option<Write>,
}

struct Write {
    id: u64,
    at: u64,
    data: Vec<u8>,
    /// The bytes that were in its place.
    before: Vec<u8>,
}

impl VirtualFiles {
    /// Lets the process that writes next to a file whose name begins so die in that, as in a crash. With
    /// `is_shown` [`show_late_write`](Self::show_late_write) shows the write; without, it is lost.
    pub fn arm_late_write(&self, prefix: &str, is_shown: bool) {
        self.0.lock().late.armed = Some((prefix.to_owned(), is_shown));
    }

    /// Takes that back.
    pub fn disarm_late_write(&self) {
        self.0.lock().late.armed = None;
    }

    /// Shows the write that was on its way, for good. False when there is none, and when something else
    /// was written to its place.
    pub fn show_late_write(&self) -> bool {
        let state = &mut *self.0.lock();
        let Some(Write { id, at, data, before }) = state.late.write.take() else { return false };
        let Some(node) = state.nodes.get_mut(&id) else { return false };
        let is_as_before = |bytes: &[u8]| in_place(bytes, at, before.len()) == before;
        if !is_as_before(&node.view.data) || !is_as_before(&node.durable.data) {
            return false;
        }
        let end = at + data.len() as u64;
        let change = Change::Write(at, data);
        node.view.change(&change);
        node.durable.change(&change);
        node.pages.extend(at / PAGE..end.div_ceil(PAGE));
        true
    }
}

impl State {
    /// True when a write is on its way and its process dies.
    pub(super) fn comes_late(&mut self, id: u64, at: u64, data: &[u8]) -> bool {
        let armed = self.late.armed.take_if(|(prefix, _)| {
            self.names.iter().any(|(name, of)| *of == id && name.starts_with(&**prefix))
        });
        let Some((_, is_shown)) = armed else { return false };
        if is_shown && let Some(node) = self.nodes.get(&id) {
            let before = in_place(&node.view.data, at, data.len());
            self.late.write = Some(Write { id, at, data: data.to_vec(), before });
        }
        self.down = true;
        true
    }
}

/// So many bytes from a place on; zeroes behind the end.
fn in_place(bytes: &[u8], at: u64, length: usize) -> Vec<u8> {
    let from = bytes.get(at as usize..).unwrap_or_default();
    let mut there = from[..from.len().min(length)].to_vec();
    there.resize(length, 0);
    there
}
