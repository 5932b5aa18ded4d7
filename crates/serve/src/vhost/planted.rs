//! Deliberate mistakes, for tests that must find them.

use std::cell::Cell;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The mark of a request goes before the used ring has it.
    MarkGoesFirst,
    /// A guest is not woken when a flush is answered that waited.
    GuestNotTold,
    /// The guest's data is copied again after the volume took it.
    ReadTwice,
    /// The volume is not asked to wake a queue whose changes wait for room.
    NobodyIsWoken,
}

thread_local! {
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// True when this thread makes the mistake.
pub(crate) fn is(bug: Bug) -> bool {
    BUG.get() == Some(bug)
}

/// Does something while this thread makes a mistake.
pub(crate) fn with<T>(bug: Bug, does: impl FnOnce() -> T) -> T {
    BUG.set(Some(bug));
    let done = does();
    BUG.set(None);
    done
}
