"""SGLang's frontend over ours: its calls, its states, its programs. `sglang_dsl.sglang` has its names."""
