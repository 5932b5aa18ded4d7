//! Containers packed: grouped, compressed, sealed.

use crate::{
    format::container::{OpenContainer, Packed, Packer},
    operations_log::Archive,
};

/// Packs a container. Takes what may be long: can be done on any thread.
pub(crate) fn pack(archive: &Archive, open: OpenContainer, packer: &mut Packer) -> Packed {
    open.pack(
        &archive.identity,
        archive.tables().epoch,
        archive.label().compression,
        packer,
        &archive.buffers,
    )
}
