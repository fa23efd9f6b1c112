"""The words of training logs: names of steps, of measured values, and of settings."""

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# If a line has several of them, the first in this order decides: counters over the whole training come first.
GLOBAL_STEPS = _words("global_step globalstep num_updates total_timesteps num_timesteps timesteps")
STEPS = _words("step step_i steps_done schritt étape etape paso 步数 步骤 步 스텝 ステップ шаг")
ITERATIONS = _words("iter iteration itr it update tick itération iteración iteracion 迭代 迭代次数 итерация")
BATCHES = _words("batch minibatch batch_idx batch_id lote 批次 배치 バッチ батч")
STEP_WORDS = (GLOBAL_STEPS, STEPS, ITERATIONS, BATCHES)
EPOCHS = _words("epoch ep epoche époque epoque época epoca 轮次 轮 輪 輪次 에포크 에폭 エポック эпоха")
STEP_AND_END = _words("global_step/max_steps step/max_steps step/total_steps iter/max_iters iter/total_iters")
EPOCH_AND_STEP = _words("epoch/iter epoch/step epoch/iteration epoch/batch ep/it")  # "epoch/iter: 0/199"
EPISODES = _words(
    "episode 에피소드 エピソード эпизод"
)  # they count as epochs only where a line names neither a step nor an epoch
ROUNDS = _words("round game generation gen")  # like episodes, but only beside what is measured
# Where a count stands in the same line, its end.  "total_steps" are also the steps done so far, of reinforcement learning.
ENDS_OF_STEPS = _words("max_steps max_iters num_steps num_training_steps num_train_steps total_train_steps")
ENDS_OF_GLOBAL_STEPS = ENDS_OF_STEPS | _words("total_steps")
ENDS_OF_EPOCHS = _words("epochs num_epochs max_epochs total_epochs num_train_epochs n_epochs")
WORDS_OF_A_NUMBER = _words("total max num number of train training n")  # "Number of epochs" is their end, too
# "max epoch: 100", "eval step 5", "save step 500" do not tell the training's position.
NOT_HERE = _words(
    "max min num number total per every each warmup fps save saving saved log last next previous first from"
)
NOT_HERE |= _words("until since by over")
NEVER_HERE = _words("resume resuming resumed loaded loading restored restoring checkpoint best")
NEVER_HERE |= _words("beste bester meilleur meilleure mejor melhor 最佳 최고 лучшая лучший")
OF_THE_BEST = _words("at @ in from on")  # where the best value was seen: "best acc 0.95 at epoch 17"
BESIDE_VALUES = _words("over of in for on by from")  # "loss: 0.5 over 1280 frames"
# "Lowest loss at step 100: 0.2" tells of an earlier step, or of a bound.
NOT_OF_NOW = _words(
    "best lowest highest worst min minimum max maximum initial previous prior earlier last final first"
)
NOT_OF_NOW |= _words("saved target over improvement no")
# Settings, unless a measured value or an epoch stands beside them: "Steps : 5, Gen Loss Total : 92.3".
PLURAL_STEPS = _words("steps iters iterations")
# "20/ 108 batches", "5120/60000 samples"
STEP_COUNTS = _words(
    "batches batch steps step iters iter iterations its it updates schritte schritten étapes pasos 步"
)
SAMPLE_COUNTS = _words("samples sample examples example images image imgs img sequences")
EPOCH_COUNTS = _words("epochs epoch epochen époques epoques épocas epocas 轮")

EVALUATION = _words(
    "val valid validate validation validating eval evaluate evaluation evaluating test testing dev"
)
EVALUATION |= _words("predict prediction predicting inference sanity cv validierung evaluierung")
EVALUATION |= _words("validación validacion validação prueba évaluation evaluación 验证 测试 验证集 测试集")
EVALUATION |= _words("驗證 測試 검증 테스트 평가 検証 テスト 評価 валидация тест")
TRAINING = _words("train training learning fit fitting trn trainiere")
TRAINING |= _words("entraînement entrenamiento treinamento 训练 訓練 훈련 학습 学習 обучение")
PARTS = EVALUATION | _words("train training")  # "train loss 2.5", "val loss 2.6" are two metrics
BEFORE_NAME = PARTS | _words("lm grad gradient learning total aux avg average running best lowest highest")
LEFT_OUT = _words("average avg current the")  # "Average loss" is the loss
JOINING = _words("and with or then")  # before a name: "and val loss: 0.5"
NUMBERINGS = _words("num number no nr")  # behind a counter: "Episode Num: 1"
LEVELS = _words("info debug warning error root notice level")

# Other bars are not the training's: "Map", "Loading checkpoint shards", "Downloading".
TRAINING_BARS = (
    TRAINING
    | EPOCHS
    | EPISODES
    | EPOCH_COUNTS
    | _words("progress steps step iters iter iterations iteration batch it updates")
)
PLURAL_BATCHES = _words("batches minibatches")  # an encoder's too: the training's only with measured values
DATA_BARS = _words("split dataset data shards shard files cache tokens set examples")
NEUTRAL_IN_BARS = _words("rank gpu cuda device node g e of on in lr completed loop global")
STEP_RATES = STEP_COUNTS

# What people measure.  A line without a step counts only if it has such a name; its values belong to the last step.
MEASURES = _words(
    "loss losses acc accuracy ppl perplexity reward rewards return score error err f1 auc auroc map map50"
)
MEASURES |= _words(
    "map50-95 bleu rouge wer cer iou miou dice psnr ssim fid mse rmse mae l1 l2 nll bpb bpc elbo kl entropy"
)
MEASURES |= _words(
    "kimg inertia fitness objective objf precision recall top1 top5 acc1 acc5 acc@1 acc@5 prec@1 prec@5 logloss crossentropy r2 mcc kappa ndcg mrr hr@1 hr@5 hr@10 hr@20 hit@1 hit@5 hit@10 hit@20"
)
MEASURES |= _words("verlust genauigkeit fehler fehlerrate belohnung")
_FOREIGN_MEASURES = _words("perte précision exactitude pérdida perdida precisión exactitud perda precisão")
_FOREIGN_MEASURES |= _words("损失 准确率 精度 損失 準確率 正解率 손실 로스 정확도 보상")
_FOREIGN_MEASURES |= _words("потери точность ошибка награда")
MEASURES |= _FOREIGN_MEASURES
RATIOS = _words("acc accuracy correct top1 top5")  # "Accuracy: 9856/10000"

# Names that describe the run.  They are not metrics, and a line with two of them is a dump of settings.
SETTINGS = _words(
    "seed epochs steps iters iterations batchsize batch_size num_workers workers hidden_size hidden_dim bs"
)
SETTINGS |= _words(
    "n_layer n_layers n_head n_heads n_embd d_model vocab_size block_size seq_len dropout lernrate weight_decay momentum"
)
SETTINGS |= _words(
    "betas beta1 beta2 eps gamma warmup warmup_steps grad_clip save_every eval_interval log_interval world_size"
)
SETTINGS |= _words(
    "local_rank hidden layers heads width depth patience gradient_accumulation_steps lr learning_rate batch"
)
SETTINGS |= _words("device port")
OFTEN_MEASURED = _words("lr learning_rate lernrate momentum batch gamma weight_decay")  # and settings too
NOT_VALUES = (SETTINGS - OFTEN_MEASURED) | _words(
    "rank pid line gpu cuda dataloader v_num version node worker eta remaining"
)
NOT_VALUES |= _words(
    "client clients trial fold of in at to for on by from with and or than is was after about took a the size instances images id"
)
NOT_VALUES |= _words(
    "sentences numimages over run job attempt has have had x no num elapsed ends param params parameters ts timestamp unix_time"
)
NOT_VALUE_STARTS = ("num_", "n_", "max_epoch", "max_step", "max_iter", "total_")
NOT_VALUE_ENDS = (
    "_id",
    "_seed",
    "_size",
    "_len",
    "_epochs",
    "_interval",
    "_every",
    "_step",
    "_steps",
    "_epoch",
    "_round",
)

# The first column of a table of metrics.
HEADERS = EPOCHS | EPISODES | ROUNDS | STEPS | ITERATIONS | GLOBAL_STEPS | _words("e # class classes")
# A line without any of these, in lower case, says nothing; the most common ones come first.
_COMMON_HINTS = (
    "loss",
    "step",
    "epoch",
    "it/s",
    "iter",
    "train",
    "acc",
    "%|",
    "batch",
    "s/it",
    " avg,",
    "ep. ",
    "%] in ",
    "% (",
    "update",
    "\u2501",
    "[=",
)
_COUNT_HINTS = (
    "episode",
    "schritt",
    "learn",
    "itr",
    "ep ",
    "ep:",
    "ep=",
    "it ",
    "it:",
    "it=",
    "epoque",
    "epoca",
    "perte",
)
_SHORTEST = {
    word
    for word in MEASURES - _FOREIGN_MEASURES
    if not any(word != part and part in word for part in (*MEASURES, "loss", "acc"))
}
HINTS = (*_COMMON_HINTS, *_COUNT_HINTS, *sorted(_SHORTEST))
# Looked for only in lines with letters that English does not have, which are few.
FOREIGN_COUNTS = sorted(
    word for words in (EPOCHS, EPISODES, *STEP_WORDS) for word in words if not word.isascii()
)
FOREIGN_HINTS = (*sorted(_FOREIGN_MEASURES), *FOREIGN_COUNTS, "paso ")

_PARTS_OF_NAME = re.compile(r"[/_.\s-]+")
_OF_ERRORS = _words(
    "mean average avg absolute squared square relative rms l1 l2 classification prediction reconstruction top1 top5"
)
MEASURE_ENDS = (
    "loss",
    "accuracy",
    "verlust",
    "genauigkeit",
    "损失",
    "准确率",
    "損失",
    "準確率",
    "正解率",
    "손실",
    "정확도",
)  # "Validierungsverlust" is one word
_NOT_MEASURED = frozenset(
    {
        "code",
        "functions",
        "scale",
        "weight",
        "weights",
        "coef",
        "coeff",
        "lambda",
        "fn",
        "func",
        "type",
        "smoothing",
        "threshold",
    }
)


def is_measure(name: str) -> bool:
    """Whether a name is one that trainings measure, such as ``train_loss`` or ``eval/accuracy``."""
    word = name.lower()
    parts = _PARTS_OF_NAME.split(word)
    if not _NOT_MEASURED.isdisjoint(parts):
        return False
    return (
        word in MEASURES
        or not MEASURES.isdisjoint(parts)
        or ("@" in word and not MEASURES.isdisjoint(part.partition("@")[0] for part in parts))
        or any(part.endswith(MEASURE_ENDS) for part in parts)
    )


def is_failure(name: str) -> bool:
    """Whether a name may tell of what went wrong: "error: 404"; "validation error" is measured."""
    parts = _PARTS_OF_NAME.split(name.lower())
    return "error" in parts and PARTS.union(_OF_ERRORS).isdisjoint(parts)


def is_counter(word: str) -> bool:
    """Whether a word, in lower case, names steps, epochs or episodes."""
    return word in EPOCHS or word in EPISODES or any(word in words for words in STEP_WORDS)


def is_setting(name: str) -> bool:
    """Whether a name is that of an argument and is never measured."""
    word = name.lower()
    return word in SETTINGS and word not in OFTEN_MEASURED


_ENDS_OF_SUMS = (
    "tokens",
    "loss",
    "norm",
    "reward",
    "return",
    "score",
)  # "total_loss", "total_loss_step" of Lightning


def is_value(name: str) -> bool:
    """Whether a number of this name may be a metric."""
    word = name.lower()
    if word in NOT_VALUES or (
        word.startswith(NOT_VALUE_STARTS)
        and not word.removesuffix("_step").removesuffix("_epoch").endswith(_ENDS_OF_SUMS)
    ):
        return False
    return not word.endswith(NOT_VALUE_ENDS) or is_measure(word)
