//! Little-endian fields, written and read one after the other. A reader takes hostile bytes.

use onefold_core::{Error, Kind, Result};

use crate::memory::Drawn;

/// Appends fields.
#[derive(Clone, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// The low `n` bytes of a number, at most 8.
    pub(crate) fn uint(&mut self, value: u64, n: usize) -> &mut Writer {
        self.raw(&value.to_le_bytes()[..n])
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A length and so many bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(bytes.len() as u32).raw(bytes)
    }
}

/// Takes fields off; with a second value, counts and lengths are drawn there before memory is taken
/// for them.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8], pub(crate) Option<&'a Drawn>);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .0
            .split_at_checked(n)
            .ok_or_else(|| Error::new(Kind::Corrupt, "it ends too early"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of `n` bytes, at most 8.
    pub(crate) fn uint(&mut self, n: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes[..n].copy_from_slice(self.take(n)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// A number that grows by one at a time: none ever comes near the end of 64 bits.
    pub(crate) fn counter(&mut self) -> Result<u64> {
        let n = self.u64()?;
        if n < 1 << 62 {
            Ok(n)
        } else {
            Err(Error::new(Kind::Corrupt, "a counter can't be so high"))
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.u32()? as usize;
        let bytes = self.take(n)?;
        self.draw(n)?;
        Ok(bytes)
    }

    fn draw(&self, bytes: usize) -> Result<()> {
        self.1.map_or(Ok(()), |drawn| drawn.more(bytes as u64))
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec())
            .map_err(|_| Error::new(Kind::Corrupt, "a name is no UTF-8"))
    }

    /// So many things of at least `least` bytes each, which take about `memory` bytes each in
    /// tables; a count that can't be true is damage, before memory is taken for it.
    pub(crate) fn count(&mut self, least: usize, memory: usize) -> Result<usize> {
        let n = self.u32()? as usize;
        if n.saturating_mul(least) > self.0.len() {
            return Err(Error::new(
                Kind::Corrupt,
                format!("{n} entries can't be in {} bytes", self.0.len()),
            ));
        }
        self.draw(n.saturating_mul(memory))?;
        Ok(n)
    }

    pub(crate) fn end(&self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Error::new(Kind::Corrupt, format!("{} bytes too many", self.0.len())))
        }
    }
}

/// An error of kind `Corrupt` that says what is damaged.
pub(crate) fn corrupt(what: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, what)
}
