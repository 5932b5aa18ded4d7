//! Keys sealed by keys.

use onefold_core::Result;
use zeroize::Zeroizing;

use crate::{
    Secret,
    cipher::SivKey,
    random::{Random, drawn},
    uses::Use,
};

/// Bytes in front of what is wrapped, and behind it: nonce and tag.
pub(crate) const NONCE_BYTES: usize = 12;

/// Bytes that a wrapped key takes.
pub(crate) const WRAPPED_BYTES: usize = NONCE_BYTES + 32 + 16;

/// What is wrapped; it is proven with the wrap, so that no key stands in the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapped {
    /// The root key, in a slot.
    Root,
    /// The store key.
    Store,
    /// The domain root.
    DomainRoot,
    /// A domain.
    Domain,
}

impl Wrapped {
    fn code(self) -> u8 {
        match self {
            Wrapped::Root => 1,
            Wrapped::Store => 2,
            Wrapped::DomainRoot => 3,
            Wrapped::Domain => 4,
        }
    }
}

/// Which key of which store it is, and what else the wrap proves.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    pub(crate) id: &'a [u8; 16],
    pub(crate) what: Wrapped,
    pub(crate) number: u32,
    pub(crate) more: &'a [u8],
}

impl Name<'_> {
    fn associated(&self) -> Vec<u8> {
        let mut bytes = self.id.to_vec();
        bytes.push(self.what.code());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(self.more);
        bytes
    }
}

/// `bytes` wrapped by a key: nonce, what is sealed, tag.
pub(crate) fn wrap(
    outer: &Secret,
    name: Name<'_>,
    bytes: &[u8],
    random: &dyn Random,
) -> Result<Vec<u8>> {
    let nonce: [u8; NONCE_BYTES] = drawn(random)?;
    let mut sealed = Zeroizing::new(bytes.to_vec());
    let key = SivKey::new(&outer.derive(Use::WRAPPING))?;
    let tag = key.seal_at(nonce, &name.associated(), &mut sealed)?;
    Ok([&nonce[..], &sealed, &tag].concat())
}

/// What was wrapped so; `None` when it was not.
pub(crate) fn unwrap(
    outer: &Secret,
    name: Name<'_>,
    wrapped: &[u8],
) -> Result<Option<Zeroizing<Vec<u8>>>> {
    let Some((nonce, rest)) = wrapped.split_first_chunk() else { return Ok(None) };
    let Some((sealed, tag)) = rest.split_last_chunk() else { return Ok(None) };
    let mut bytes = Zeroizing::new(sealed.to_vec());
    let key = SivKey::new(&outer.derive(Use::WRAPPING))?;
    let opens = key.open_at(*nonce, &name.associated(), &mut bytes, tag);
    Ok(opens.then_some(bytes))
}

/// A key that was wrapped so; `None` when it was not.
pub(crate) fn unwrap_key(outer: &Secret, name: Name<'_>, wrapped: &[u8]) -> Result<Option<Secret>> {
    let Some(bytes) = unwrap(outer, name, wrapped)? else { return Ok(None) };
    let mut key = Zeroizing::new([0; 32]);
    if bytes.len() != key.len() {
        return Ok(None);
    }
    key.copy_from_slice(&bytes);
    Ok(Some(Secret::take(&mut key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::Seeded;

    #[test]
    fn rule_21_a_wrapped_key_stands_in_no_other_place() {
        let (outer, inner) = (Secret::take(&mut [1; 32]), Secret::take(&mut [2; 32]));
        let name = Name { id: &[3; 16], what: Wrapped::Domain, number: 4, more: b"five" };
        let wrapped = wrap(&outer, name, inner.expose(), &Seeded::new(1)).unwrap();
        assert_eq!(wrapped.len(), WRAPPED_BYTES);
        let opens = |outer: &Secret, name: Name<'_>, wrapped: &[u8]| {
            unwrap_key(outer, name, wrapped).unwrap().is_some_and(|key| key.equals(inner.expose()))
        };
        assert!(opens(&outer, name, &wrapped));
        assert!(!opens(&inner, name, &wrapped));
        assert!(!opens(&outer, Name { id: &[4; 16], ..name }, &wrapped));
        assert!(!opens(&outer, Name { what: Wrapped::Store, ..name }, &wrapped));
        assert!(!opens(&outer, Name { number: 5, ..name }, &wrapped));
        assert!(!opens(&outer, Name { more: b"six", ..name }, &wrapped));
        for at in 0..wrapped.len() {
            let mut turned = wrapped.clone();
            turned[at] ^= 1;
            assert!(!opens(&outer, name, &turned), "byte {at}");
        }
        for short in 0..wrapped.len() {
            assert!(!opens(&outer, name, &wrapped[..short]), "{short} bytes");
        }
    }
}
