//! The content of a block as its map entry names it, for senders.

use onefold_core::Lba;
use onefold_stream::{Piece, PieceKind};

use crate::format::page::MapEntry;

/// Adds what an entry of a map says of a block.
pub(super) fn add(pieces: &mut Vec<Piece>, lba: Lba, entry: MapEntry) {
    let kind = match entry {
        MapEntry::Hole => PieceKind::Hole,
        MapEntry::Zero => PieceKind::Zeroes,
        MapEntry::Block { .. } | MapEntry::Lost => PieceKind::Data,
    };
    match pieces.last_mut() {
        Some(last) if last.kind == kind && last.first + last.blocks == lba.0 => last.blocks += 1,
        _ => pieces.push(Piece { first: lba.0, blocks: 1, kind }),
    }
}
