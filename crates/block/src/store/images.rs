//! Importing: a stream of raw data becomes a volume, whole or not at all.

use std::io::Read;

use onefold_core::{Error, Kind, Result, VolumeId};

use super::Copies;
use crate::{
    Frame, NewVolume, Next, StreamReader,
    format::{FIRST_DOMAIN, catalogue::VOLUME_BLOCKS_MAX},
};

/// The name of the volume that an import makes until it is whole.
fn part_of(name: &str) -> String {
    format!(".{name}.part")
}

/// The volume whose import makes one of this name.
pub(super) fn imported_by(part: &str) -> Option<&str> {
    part.strip_prefix('.')?.strip_suffix(".part").filter(|name| !name.is_empty())
}

impl Copies<'_> {
    /// Makes a volume of a stream of raw data; returns its size in bytes. It has its name when all
    /// its data is durable. Until then it is called `.NAME.part`, and goes again after an error; a
    /// crash leaves it. `look` hears of the bytes so far, and gives the import up when it fails.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, `NoSpace`, `Corrupt` for a damaged stream, `Io`, `Stopped`.
    pub fn import(
        &self,
        name: &str,
        input: impl Read,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        if self.0.engine.find_volume(name).is_ok() {
            return Err(Error::new(Kind::Exists, format!("there is a volume '{name}' already")));
        }
        let mut reader = StreamReader::begin(input)?;
        let about = reader.about().clone();
        if about.base != [0; 16] || about.start != 0 {
            let message = "the stream holds changes alone: `onefold receive` applies them";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        self.complete_index()?;
        let part = part_of(name);
        let new = NewVolume {
            no_dedup: about.no_dedup.clone(),
            domain: self.1.unwrap_or(FIRST_DOMAIN),
            ..NewVolume::default()
        };
        let made = self.0.create_volume_as(&part, about.blocks.max(1) * 4096, &new);
        let id = made.map_err(|error| match error.kind() {
            Kind::Exists => Error::new(
                Kind::Exists,
                format!(
                    "an import of '{name}' is under way, or was cut off: in that case delete the \
                     volume '{part}'"
                ),
            ),
            _ => error,
        })?;
        let mut size = about.blocks.max(1);
        let taken = self.take_frames(id, &mut reader, &mut size, look).and_then(|blocks| {
            if blocks == 0 {
                return Err(Error::new(Kind::InvalidInput, "there is nothing to import"));
            }
            if blocks != size {
                self.0.resize_volume(&part, blocks * 4096)?;
            }
            self.0.flush()?;
            self.0.rename_volume(&part, name)?;
            Ok(blocks * 4096)
        });
        if taken.is_err() {
            // A store that can't even do that keeps it, with a name that says what it is.
            let _ = self.0.delete_volume(&part);
        }
        taken
    }

    /// Writes all frames of raw data; the volume grows when the size is not known.
    fn take_frames(
        &self,
        id: VolumeId,
        reader: &mut StreamReader<impl Read>,
        size: &mut u64,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        loop {
            let frame: Frame = match reader.next_frame()? {
                Next::End(blocks) => return Ok(blocks),
                Next::Frame(frame) => frame,
                Next::Offer(_) => return Err(Error::new(Kind::Corrupt, "nobody negotiates")),
            };
            let end = frame.first + frame.blocks;
            if end > *size {
                *size = end.max(*size * 2).min(VOLUME_BLOCKS_MAX);
                let resize = || self.0.engine.resize_volume(id, *size);
                self.0
                    .catalogue_change(|| Ok(((), self.0.handles.lock().changing(id, resize)?)))?;
            }
            self.apply(id, &frame)?;
            look(end * 4096)?;
        }
    }
}
