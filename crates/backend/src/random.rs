//! Random bytes of the operating system: store ids, secrets, nonces.

use onefold_core::{Error, Result};
use rustix::{io::Errno, rand::GetRandomFlags};

/// `N` bytes that nobody can foresee. Early after boot it waits until the kernel has gathered
/// enough entropy.
///
/// # Errors
/// [`Kind::Unsupported`](onefold_core::Kind::Unsupported) when the kernel lacks `getrandom` (before
/// 3.17).
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(Error::from_io(
                    "cannot get random bytes from the system",
                    errno.into(),
                ));
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_fill_the_whole_array_and_differ() {
        let (a, b) = (random_bytes::<4096>().unwrap(), random_bytes::<4096>().unwrap());
        assert_ne!(a, b);
        assert!(a.chunks(64).all(|part| part.iter().any(|&x| x != 0)));
        assert_eq!(random_bytes::<0>().unwrap(), [0u8; 0]);
    }
}
