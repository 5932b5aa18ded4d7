//! The content of some blocks, as those are told who send it.

use onefold_core::{Error, ExtentKind, Kind};

/// Blocks next to each other, of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first block.
    pub first: u64,
    /// How many.
    pub blocks: u64,
    /// The kind of their content.
    pub kind: PieceKind,
}

/// The kind of what some blocks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Nothing is stored.
    Hole,
    /// Zeroes that were written.
    Zeroes,
    /// Data, or what was data before it was lost: whoever reads it sees.
    Data,
    /// A page of the map can't be read that would tell.
    Hidden,
}

impl From<ExtentKind> for PieceKind {
    fn from(kind: ExtentKind) -> PieceKind {
        match kind {
            ExtentKind::Hole => PieceKind::Hole,
            ExtentKind::Zero => PieceKind::Zeroes,
            ExtentKind::Data => PieceKind::Data,
        }
    }
}

/// Some pieces, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// In the order of addresses. What lies between them is as in the base, or a hole without one.
    pub pieces: Vec<Piece>,
    /// The block from which on nothing was looked at.
    pub next: u64,
}

/// True for an error that tells of damage of what was to be read, and of nothing else.
#[must_use]
pub fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::Io)
}
