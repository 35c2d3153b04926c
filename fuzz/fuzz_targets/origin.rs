#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| headwall_fuzz::origin::run(data));
