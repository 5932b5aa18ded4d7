//! The bytes that two hosts send each other over an ssh connection to an archive.

use onefold_remote::decoders;

use crate::reach;

/// One frame of a request, and the same bytes as what the far side says. A request that is understood
/// says the same when it is sent on.
pub fn connection(data: &[u8]) {
    if let Some(is_same) = reach::noted(decoders::request(data)) {
        assert!(is_same, "a request is understood as another one");
    }
    reach::noted(decoders::answer(data));
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let request = |what: u8, rest: &[u8]| [&[7, 0, 0, 0, 0, 0, 0, 0, what][..], rest].concat();
    let greeting = |body: &[u8]| {
        let length = (body.len() as u32).to_le_bytes();
        [b"onefold files 1\n", &length[..], body].concat()
    };
    let handle = [3, 0, 0, 0];
    let range = [&handle[..], &[0, 16, 0, 0, 0, 0, 0, 0], &[0, 2, 0, 0, 0, 0, 0, 0]].concat();
    vec![
        request(0, b""),
        request(1, &[&handle[..], b"label"].concat()),
        request(2, &[&handle[..], b"\x01segment-00000001"].concat()),
        request(6, &[&handle[..], b"\x03epoch-0"].concat()),
        request(10, &[&range[..12], &[0, 1, 0, 0, 1]].concat()),
        request(11, &[&range[..12], b"some data"].concat()),
        request(14, &range[..12]),
        request(15, &range),
        greeting(&[2, 0, 0, 6, 0, b's', b'e', b'r', b'v', b'e', b'd']),
        greeting(&[255, 8, b'n', b'o']),
        b"epoch-0\0label\0".to_vec(),
        [&[7, 0, 0, 0, 0, 0, 0, 0, 1, 9][..], b"the disk failed"].concat(),
    ]
}
