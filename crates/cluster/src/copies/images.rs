//! Importing: a stream of raw data becomes a volume, whole or not at all.
//!
//! Until then it is a number without a name, which this session fills. When the session ends before, a worker deletes
//! it, as what was put in part.

use std::io::Read;

use onefold_core::{Error, Kind, Result};
use onefold_stream::{Content, Frame, Next, StreamReader};

use super::{Copies, Filling};
use crate::{
    format::{
        BLOCK,
        catalogue::{Named, VOLUME_MAX, What},
    },
    names::{Given, Names, Record},
    replies::failed,
    volume::{Mode, Purpose, Renewal, Volume, attach_for, leave_filled, while_kept},
};

impl Copies<'_> {
    /// Makes a volume of a stream of raw data; returns its size in bytes. It has its name when all its data is
    /// durable; nothing is left of it after an error or a crash. `look` hears of the bytes so far, and gives the
    /// import up when it fails.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, `NoSpace`, `Corrupt` for a damaged stream, `Io`, `Stopped`.
    pub fn import(
        &self,
        name: &str,
        input: impl Read,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let names = Names::of(self.kernel());
        if names.find_finished(name)?.is_some() {
            return Err(exists(name));
        }
        let mut reader = StreamReader::begin(input)?;
        let about = reader.about().clone();
        if about.base != [0; 16] || about.start != 0 {
            let what = "the stream holds changes alone: `onefold receive` applies them";
            return Err(Error::new(Kind::InvalidInput, what));
        }
        let most = if about.blocks == 0 { VOLUME_MAX } else { bytes_of(about.blocks)? };
        let record = names.begin_sized(name, What::Volume, most)?;
        let _filled = self.0.leaving().fill(record.named.id);
        let filled = self.fill(name, &record, &mut reader, look);
        match filled {
            Ok(named) => {
                names.unlock_filled(named.id);
                Ok(named.bytes)
            }
            Err(error) => match names.give_up_recorded(name, &record) {
                // Its answer was lost, and it has its name.
                Given::Done => Ok(self.0.find(name)?.map_or(0, |named| named.bytes)),
                _ => Err(error),
            },
        }
    }

    /// Fills a number, and gives it its name.
    fn fill(
        &self,
        name: &str,
        record: &Record,
        reader: &mut StreamReader<impl Read>,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Named> {
        let volume = attach_for(self.0, name, &record.named, (Mode::Own, Purpose::Fill))?;
        let filled = Some(record.named.id);
        let taken = while_kept(self.kernel(), filled, &volume, || {
            self.take_frames(&volume, record, reader, look)
        });
        let taken = taken.and_then(|blocks| {
            if blocks == 0 {
                return Err(Error::new(Kind::InvalidInput, "there is nothing to import"));
            }
            bytes_of(blocks)
        });
        let bytes = match taken {
            Ok(bytes) => bytes,
            Err(error) => {
                leave_filled(volume);
                return Err(error);
            }
        };
        // As any volume that its server closed.
        volume.detach()?;
        let named = Named { bytes, ..record.named };
        let given =
            Names::of(self.kernel()).change_recorded(name, None, Some((&named, record)), None);
        given.map_err(|refusal| match refusal {
            onefold_core::object::Refusal::Mismatch => exists(name),
            refusal => {
                failed(format_args!("volume '{}' can't be made", name.escape_debug()), refusal)
            }
        })?;
        Ok(named)
    }

    /// Writes all frames of raw data; gives the size in blocks.
    fn take_frames(
        &self,
        volume: &Volume,
        record: &Record,
        reader: &mut StreamReader<impl Read>,
        look: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let mut filling = Filling::new(volume);
        let mut renewal = Renewal::of(self.kernel(), Some(record.named.id));
        loop {
            renewal.when_due(volume)?;
            let Frame { first, blocks, content } = match reader.next_frame()? {
                Next::End(blocks) => {
                    filling.settle()?;
                    return Ok(blocks);
                }
                Next::Frame(frame) => frame,
                Next::Offer(_) => return Err(Error::new(Kind::Corrupt, "nobody negotiates")),
            };
            bytes_of(first + blocks)?;
            match content {
                Content::Data(data) => filling.write(first * u64::from(BLOCK), &data)?,
                // Nothing was written there before.
                Content::Hole | Content::Zeroes => {}
                Content::Repeat(_) | Content::Held(_) | Content::Lost => {
                    let what = "the stream is of a snapshot: `onefold receive` takes it";
                    return Err(Error::new(Kind::InvalidInput, what));
                }
            }
            look((first + blocks) * u64::from(BLOCK))?;
        }
    }
}

/// The size of a volume of so many blocks.
fn bytes_of(blocks: u64) -> Result<u64> {
    match blocks.checked_mul(u64::from(BLOCK)).filter(|bytes| *bytes <= VOLUME_MAX) {
        Some(bytes) => Ok(bytes),
        None => {
            let what = "a volume of a cluster store has 128 TiB at most";
            Err(Error::new(Kind::InvalidInput, what))
        }
    }
}

fn exists(name: &str) -> Error {
    Error::new(Kind::Exists, format!("'{}' is there already", name.escape_debug()))
}
