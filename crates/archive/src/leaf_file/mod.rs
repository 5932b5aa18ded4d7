//! The leaves of the tables on the disk.
//!
//! The file `tables` has the leaves of the catalogue, the container table and the list of snapshots
//! of directories, in archives whose label says so. A leaf lies on pages of its own, twice, side by
//! side. The snapshot has a directory: for each leaf its pages and their checksum. So a checkpoint
//! writes the leaves that changed, and 16 bytes for each of the others.
//!
//! *Crash argument:* as with maps of volumes. A snapshot writes leaves to pages that neither the
//! last one nor the one before names; the label comes after their sync. Pages that it names no
//! longer are used again by the one after the next, so that the snapshot before can take the place
//! of one that rotted. The second copies are written when the first ones are durable, so that no
//! lost write costs both.
//!
//! *Leaves that are read on demand* are read without the commit lock, by whoever has tables that name
//! them. Their pages wait: who reads stays in an epoch, and a page is written again when the epoch in
//! which it was replaced has ended, and the one behind it has. Nobody is in them then, as the epoch
//! advances only when nobody is in the one before.
//!
//! *Invariant:* other leaves are read under the commit lock only, so that nobody reads pages of a
//! snapshot that two others have followed.
//!
//! | module | what |
//! |---|---|
//! | [`place`] | where a leaf lies, and the places of a table's leaves as a directory has them |
//! | [`pages`] | which pages may not be written, and the free ones between them |
//! | [`body`] | a leaf's head, table and entries on its pages |
//! | [`writer`] | leaves written for a snapshot, or ahead of one |
//! | [`reader`] | leaves read, each from the copy that is whole |

mod body;
mod pages;
mod place;
mod reader;
mod writer;

pub(crate) use self::{
    body::{LeafBody, parse},
    pages::LeafFile,
    place::{LEAVES, LeafPlace, decode_places, encode_places},
    reader::{LeafReader, rewrite_copy},
    writer::LeafWriter,
};
