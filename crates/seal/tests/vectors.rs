//! Published vectors of the ciphers and hashes.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use onefold_seal::{AgreementKey, CtrKey, GcmKey, Secret, SigningKey, SivKey, is_signed};

fn bytes(digits: &str) -> Vec<u8> {
    let digits: String = digits.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn array<const N: usize>(digits: &str) -> [u8; N] {
    bytes(digits).try_into().unwrap()
}

fn key(digits: &str) -> Secret {
    Secret::take(&mut array(digits))
}

/// RFC 8452, appendix C.2 and C.3: key, nonce, associated, content, result.
const SIV: [[&str; 5]; 11] = [
    [ONE, THREE, "", "", "07f5f4169bbf55a8400cd47ea6fd400f"],
    [ONE, THREE, "", "0100000000000000", "c2ef328e5c71c83b843122130f7364b761e0b97427e3df28"],
    [
        ONE,
        THREE,
        "",
        "010000000000000000000000",
        "9aab2aeb3faa0a34aea8e2b18ca50da9ae6559e48fd10f6e5c9ca17e",
    ],
    [
        ONE,
        THREE,
        "",
        "01000000000000000000000000000000",
        "85a01b63025ba19b7fd3ddfc033b3e76c9eac6fa700942702e90862383c6c366",
    ],
    [
        ONE,
        THREE,
        "",
        "0100000000000000000000000000000002000000000000000000000000000000",
        "4a6a9db4c8c6549201b9edb53006cba821ec9cf850948a7c86c68ac7539d027fe819e63abcd020b006a976397632eb5d",
    ],
    [
        ONE,
        THREE,
        "",
        "010000000000000000000000000000000200000000000000000000000000000003000000000000000000000000000000",
        "c00d121893a9fa603f48ccc1ca3c57ce7499245ea0046db16c53c7c66fe717e39cf6c748837b61f6ee3adcee17534ed5\
         790bc96880a99ba804bd12c0e6a22cc4",
    ],
    [ONE, THREE, "01", "0200000000000000", "1de22967237a813291213f267e3b452f02d01ae33e4ec854"],
    [
        ONE,
        THREE,
        "01",
        "020000000000000000000000",
        "163d6f9cc1b346cd453a2e4cc1a4a19ae800941ccdc57cc8413c277f",
    ],
    [
        ONE,
        THREE,
        "01",
        "02000000000000000000000000000000",
        "c91545823cc24f17dbb0e9e807d5ec17b292d28ff61189e8e49f3875ef91aff7",
    ],
    // C.3: the counter wraps.
    [
        ZERO,
        "000000000000000000000000",
        "",
        "000000000000000000000000000000004db923dc793ee6497c76dcc03a98e108",
        "f3f80f2cf0cb2dd9c5984fcda908456cc537703b5ba70324a6793a7bf218d3eaffffffff000000000000000000000000",
    ],
    [
        ZERO,
        "000000000000000000000000",
        "",
        "eb3640277c7ffd1303c7a542d02d3e4c0000000000000000",
        "18ce4f0b8cb4d0cac65fea8f79257b20888e53e72299e56dffffffff000000000000000000000000",
    ],
];

const ZERO: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const ONE: &str = "0100000000000000000000000000000000000000000000000000000000000000";
const THREE: &str = "030000000000000000000000";

#[test]
fn rule_50_gcm_siv_is_that_of_rfc_8452() {
    for [with, nonce, associated, content, result] in SIV {
        let siv = SivKey::new(&key(with)).unwrap();
        let (content, associated, result) = (bytes(content), bytes(associated), bytes(result));
        let mut sealed = content.clone();
        let tag = siv.seal_at(array(nonce), &associated, &mut sealed).unwrap();
        assert_eq!([&sealed[..], &tag].concat(), result);
        assert!(siv.open_at(array(nonce), &associated, &mut sealed, &tag));
        assert_eq!(sealed, content);
    }
}

/// The specification of GCM by McGrew and Viega, test cases 13 to 16.
#[test]
fn rule_50_gcm_is_that_of_its_specification() {
    let long = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
    let text = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
                1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    let cases = [
        [ZERO, "000000000000000000000000", "", "", "530f8afbc74536b9a963b4f1c4cb738b"],
        [
            ZERO,
            "000000000000000000000000",
            "",
            "00000000000000000000000000000000",
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        ],
        [
            long,
            "cafebabefacedbaddecaf888",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            text,
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662\
             76fc6ece0f4e1768cddf8853bb2d551b",
        ],
    ];
    for [with, nonce, associated, content, result] in cases {
        let gcm = GcmKey::new(&key(with)).unwrap();
        let (content, associated) = (bytes(content), bytes(associated));
        let mut sealed = content.clone();
        let tag = gcm.seal(array(nonce), &associated, &mut sealed).unwrap();
        assert_eq!([&sealed[..], &tag].concat(), bytes(result));
        assert!(gcm.open(array(nonce), &associated, &mut sealed, &tag));
        assert_eq!(sealed, content);
    }
}

/// NIST SP 800-38A, F.5.5.
#[test]
fn rule_50_ctr_is_that_of_sp_800_38a() {
    let ctr = CtrKey::new(&key("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"))
        .unwrap();
    let first = array("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
    let text = bytes(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
         30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
    );
    let mut sealed = text.clone();
    ctr.seal(first, &mut sealed).unwrap();
    assert_eq!(
        sealed,
        bytes(
            "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5\
             2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
        )
    );
    ctr.open(first, &mut sealed).unwrap();
    assert_eq!(sealed, text);
}

/// RFC 9106, section 5.3.
#[test]
fn rule_50_argon2id_is_that_of_rfc_9106() {
    use argon2::{Algorithm, Argon2, AssociatedData, ParamsBuilder, Version};
    let mut params = ParamsBuilder::new();
    params.m_cost(32).t_cost(3).p_cost(4).output_len(32);
    params.data(AssociatedData::new(&[4; 12]).unwrap());
    let secret = [3; 8];
    let argon = Argon2::new_with_secret(
        &secret,
        Algorithm::Argon2id,
        Version::V0x13,
        params.build().unwrap(),
    );
    let mut tag = [0; 32];
    argon.unwrap().hash_password_into(&[1; 32], &[2; 16], &mut tag).unwrap();
    assert_eq!(tag, array("0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659"));
}

/// The test vectors of BLAKE3, for no bytes and for one.
#[test]
fn rule_50_blake3_is_that_of_its_vectors() {
    let context = "BLAKE3 2019-12-27 16:29:52 test vectors context";
    let keyed = b"whats the Elvish word for friend";
    let cases: [(&[u8], [&str; 3]); 2] = [
        (
            &[],
            [
                "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
                "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
                "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d",
            ],
        ),
        (
            &[0],
            [
                "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
                "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
                "b3e2e340a117a499c6cf2398a19ee0d29cca2bb7404c73063382693bf66cb06c",
            ],
        ),
    ];
    for (input, [hash, with_key, derived]) in cases {
        assert_eq!(*blake3::hash(input).as_bytes(), array(hash));
        assert_eq!(*blake3::keyed_hash(keyed, input).as_bytes(), array(with_key));
        assert_eq!(blake3::derive_key(context, input), array(derived));
    }
}

/// RFC 8032, 7.1: seed, public key, message, signature.
const ED25519: [[&str; 4]; 3] = [
    [
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ],
    [
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ],
    [
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ],
];

#[test]
fn rule_50_ed25519_signs_as_in_rfc_8032() {
    for [seed, public, message, signature] in ED25519 {
        let signing = SigningKey::new(&key(seed)).unwrap();
        assert_eq!(signing.public(), array(public));
        let message = bytes(message);
        assert_eq!(signing.sign(&message).unwrap(), array(signature));
        assert!(is_signed(&array(public), &message, &array(signature)));
        for bit in 0..512 {
            let mut turned: [u8; 64] = array(signature);
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_signed(&array(public), &message, &turned), "bit {bit}");
        }
        assert!(!is_signed(&array(public), &[&message[..], b"!"].concat(), &array(signature)));
    }
}

/// RFC 7748, 6.1.
#[test]
fn rule_50_x25519_agrees_as_in_rfc_7748() {
    let secrets = [
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
    ];
    let publics = [
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ];
    let shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742";
    for (own, other) in [(0, 1), (1, 0)] {
        let agreement = AgreementKey::new(&key(secrets[own])).unwrap();
        assert_eq!(agreement.public().unwrap(), array(publics[own]));
        let agreed = agreement.agree(&array(publics[other])).unwrap();
        assert!(agreed.equals(&array(shared)));
    }
    // RFC 7748, 5.2.
    let agreement =
        AgreementKey::new(&key("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"));
    let point = array("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
    let agreed = agreement.unwrap().agree(&point).unwrap();
    assert!(
        agreed.equals(&array("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"))
    );
}

#[test]
fn rule_45_x25519_agrees_with_no_point_of_small_order() {
    let agreement =
        AgreementKey::new(&key("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
            .unwrap();
    for point in [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    ] {
        assert!(agreement.agree(&array(point)).is_none(), "{point}");
    }
}
