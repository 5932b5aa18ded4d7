//! Faults of a disk, and when they come.

/// A fault that a disk injects into one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A read fails; the next one of the same block succeeds.
    ReadOnce,
    /// A block can't be read any more, until it is written again.
    ReadForGood,
    /// A read returns the block of another address.
    MisdirectedRead,
    /// A write fails and leaves each of its blocks old, new or torn.
    WriteError,
    /// A flush fails; what was unflushed is gone, and a second flush does not bring it back.
    FlushError,
    /// A write fails because the host has no space.
    NoSpaceWrite,
    /// An allocation fails because the host has no space.
    NoSpaceAllocate,
    /// A bit of a written block flips, or a sector turns into noise.
    Rot,
    /// A block is written to another address, and acknowledged: the right one stays old, the wrong
    /// one is damaged.
    MisdirectedWrite,
    /// A block is acknowledged and never written: the old one, which looks whole, stays.
    LostWrite,
    /// A call takes up to thirty seconds of virtual time.
    Slow,
}

/// The kind of call that a fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
    Flush,
    Allocate,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 11] = [
        Fault::ReadOnce,
        Fault::ReadForGood,
        Fault::MisdirectedRead,
        Fault::WriteError,
        Fault::FlushError,
        Fault::NoSpaceWrite,
        Fault::NoSpaceAllocate,
        Fault::Rot,
        Fault::MisdirectedWrite,
        Fault::LostWrite,
        Fault::Slow,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::ReadOnce => "fault: read error, once",
            Fault::ReadForGood => "fault: read error, for good",
            Fault::MisdirectedRead => "fault: misdirected read",
            Fault::WriteError => "fault: write error",
            Fault::FlushError => "fault: flush error",
            Fault::NoSpaceWrite => "fault: no space for a write",
            Fault::NoSpaceAllocate => "fault: no space to allocate",
            Fault::Rot => "fault: bit rot",
            Fault::MisdirectedWrite => "fault: misdirected write",
            Fault::LostWrite => "fault: lost write",
            Fault::Slow => "fault: slow",
        }
    }

    /// True when it can cost data, so that errors (never wrong content) are right answers
    /// afterwards.
    #[must_use]
    pub fn damages(self) -> bool {
        matches!(
            self,
            Fault::ReadForGood
                | Fault::MisdirectedRead
                | Fault::Rot
                | Fault::MisdirectedWrite
                | Fault::LostWrite
        )
    }

    /// True when the store must stop writing after it, until it is opened again.
    #[must_use]
    pub fn stops(self) -> bool {
        matches!(self, Fault::WriteError | Fault::FlushError | Fault::NoSpaceWrite)
    }

    /// True when it can happen in `call`.
    fn fits(self, call: Call) -> bool {
        match self {
            Fault::ReadOnce | Fault::ReadForGood | Fault::MisdirectedRead => call == Call::Read,
            Fault::WriteError
            | Fault::NoSpaceWrite
            | Fault::MisdirectedWrite
            | Fault::LostWrite => call == Call::Write,
            Fault::FlushError => call == Call::Flush,
            Fault::NoSpaceAllocate => call == Call::Allocate,
            Fault::Rot | Fault::Slow => true,
        }
    }
}

/// Faults that wait for their call.
#[derive(Clone, Default)]
pub(super) struct Plan(Vec<(Fault, u64)>);

impl Plan {
    /// Lets `fault` happen after `calls` more calls that it fits.
    pub(super) fn arm(&mut self, fault: Fault, calls: u64) {
        self.0.push((fault, calls));
    }

    /// Forgets all faults.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts one call, and takes the fault whose turn it is: at most one a call, the others wait
    /// for the next.
    pub(super) fn take(&mut self, call: Call) -> Option<Fault> {
        let mut due = None;
        for (index, (fault, calls)) in self.0.iter_mut().enumerate() {
            if fault.fits(call) {
                if *calls == 0 && due.is_none() {
                    due = Some(index);
                }
                *calls = calls.saturating_sub(1);
            }
        }
        due.map(|index| self.0.remove(index).0)
    }
}
