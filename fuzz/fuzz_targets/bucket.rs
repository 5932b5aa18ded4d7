#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onefold_fuzz::bucket(data));
