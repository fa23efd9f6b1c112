# A model, words and sentences small enough for a slot, made here instead of downloaded; then TRL's own command.
set -e
if [ ! -e sentences ]; then
  python - <<'END'
import json
import pathlib

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = "the cat dog sat ran on a mat road and slept".split()
vocabulary = {word: place for place, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
).save_pretrained("tiny")
config = LlamaConfig(
    vocab_size=len(vocabulary),
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    eos_token_id=1,
)
LlamaForCausalLM(config).save_pretrained("tiny")
pathlib.Path("sentences").mkdir(exist_ok=True)
with open("sentences/train.jsonl", "w") as file:
    for number in range(200):
        words = [WORDS[(number * place) % len(WORDS)] for place in range(1, 9)]
        file.write(json.dumps({"text": " ".join(words)}) + "\n")
END
fi
exec trl sft --model_name_or_path tiny --dataset_name sentences --output_dir out --max_steps 80 --save_steps 10 \
  --logging_steps 2 --per_device_train_batch_size 2 --max_length 32 --use_cpu --report_to none --bf16 false
