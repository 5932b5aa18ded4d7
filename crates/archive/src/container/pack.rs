//! Containers packed: grouped, compressed, sealed.

use onefold_core::Result;

use crate::{
    format::container::{OpenContainer, Packed, Packer},
    operations_log::Archive,
    rules::Rule,
};

/// Packs a container. Compression is the slow part of a put; any thread may do it.
///
/// # Errors
/// In sealed archives, the errors of the source of chance.
pub(crate) fn pack(archive: &Archive, open: OpenContainer, packer: &mut Packer) -> Result<Packed> {
    open.pack(
        &archive.identity,
        archive.tables().epoch,
        (
            archive.label().compression,
            archive.label().pads && archive.keeps(Rule::ContainersPadded),
        ),
        packer,
        &archive.buffers,
    )
}
