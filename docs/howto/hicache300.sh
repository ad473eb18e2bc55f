#!/usr/bin/env bash
# The launch of the founding case, as it was typed.
python -m sglang.launch_server \
  --model-path /models/Kimi-K2.5 --served-model-name kimi-k2.5 --trust-remote-code \
  --tp 8 --host 0.0.0.0 --mem-fraction-static 0.93 --chunked-prefill-size 8192 --attention-backend triton \
  --enable-hierarchical-cache --hicache-size 300 --hicache-write-policy write_through --hicache-io-backend kernel \
  --num-continuous-decode-steps 4 --disable-custom-all-reduce > server.log 2>&1 &
