//! The file of `redb` for its owner, who has locked it. A damaged file may name pages longer than
//! itself: no memory is taken for these.

use std::{fs::File, io, os::unix::fs::FileExt};

use redb::StorageBackend;

/// Reads that are compared with the length of the file before memory is taken for them.
const LONG: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Own(pub(super) File);

impl StorageBackend for Own {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if len > LONG
            && offset
                .checked_add(len as u64)
                .is_none_or(|end| self.0.metadata().is_ok_and(|file| end > file.len()))
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}
