//! The ciphers beside other implementations of them, with random keys, nonces and contents.

use aes_gcm::{
    Aes256Gcm, KeyInit,
    aead::{Aead, Payload},
};
use aes_gcm_siv::Aes256GcmSiv;
use ctr::cipher::{KeyIvInit, StreamCipher};
use onefold_seal::{CtrKey, GcmKey, Secret, SivKey};
use onefold_testbed::Rng;

const CASES: u64 = 10_000;

fn drawn<const N: usize>(rng: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| rng.next() as u8)
}

/// Mostly short, at times a block and more.
fn content(rng: &mut Rng) -> Vec<u8> {
    let most = if rng.once_in(50) { 9000 } else { 200 };
    (0..rng.below(most)).map(|_| rng.next() as u8).collect()
}

fn secret(bytes: &[u8; 32]) -> Secret {
    Secret::take(&mut bytes.clone())
}

#[test]
fn rule_50_gcm_siv_agrees_with_its_oracle() {
    let mut rng = Rng::new(50);
    for case in 0..CASES {
        let (key, nonce) = (drawn::<32>(&mut rng), drawn::<12>(&mut rng));
        let (text, associated) = (content(&mut rng), content(&mut rng));
        let oracle = Aes256GcmSiv::new(&key.into());
        let payload = Payload { msg: &text, aad: &associated };
        let expected = oracle.encrypt(&nonce.into(), payload).unwrap();
        let siv = SivKey::new(&secret(&key)).unwrap();
        let mut sealed = text.clone();
        let tag = siv.seal_at(nonce, &associated, &mut sealed).unwrap();
        assert_eq!([&sealed[..], &tag].concat(), expected, "case {case}");
        assert!(
            siv.open_at(nonce, &associated, &mut sealed, &tag) && sealed == text,
            "case {case}"
        );
    }
}

#[test]
fn rule_50_gcm_agrees_with_its_oracle() {
    let mut rng = Rng::new(51);
    for case in 0..CASES {
        let (key, nonce) = (drawn::<32>(&mut rng), drawn::<12>(&mut rng));
        let (text, associated) = (content(&mut rng), content(&mut rng));
        let oracle = Aes256Gcm::new(&key.into());
        let payload = Payload { msg: &text, aad: &associated };
        let expected = oracle.encrypt(&nonce.into(), payload).unwrap();
        let gcm = GcmKey::new(&secret(&key)).unwrap();
        let mut sealed = text.clone();
        let tag = gcm.seal(nonce, &associated, &mut sealed).unwrap();
        assert_eq!([&sealed[..], &tag].concat(), expected, "case {case}");
        assert!(gcm.open(nonce, &associated, &mut sealed, &tag) && sealed == text, "case {case}");
    }
}

#[test]
fn rule_50_ctr_agrees_with_its_oracle() {
    let mut rng = Rng::new(52);
    for case in 0..CASES {
        let (key, first) = (drawn::<32>(&mut rng), drawn::<16>(&mut rng));
        let text = content(&mut rng);
        let mut expected = text.clone();
        ctr::Ctr128BE::<aes::Aes256>::new(&key.into(), &first.into())
            .apply_keystream(&mut expected);
        let ours = CtrKey::new(&secret(&key)).unwrap();
        let mut sealed = text.clone();
        ours.seal(first, &mut sealed).unwrap();
        assert_eq!(sealed, expected, "case {case}");
        ours.open(first, &mut sealed).unwrap();
        assert_eq!(sealed, text, "case {case}");
    }
}
