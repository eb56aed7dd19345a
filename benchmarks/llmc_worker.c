// Times training steps of llm.c's CPU trainer, for models of any size; engines.py compiles and runs it.
//
//     cc -Ofast -march=native -fopenmp -DOMP -DTESTING -I LLMC llmc_worker.c -lm -o worker
//     OMP_NUM_THREADS=2 ./worker MODEL IDS SEQUENCES TOKENS PARTS STEPS
//
// MODEL is a checkpoint in llm.c's format, IDS a file of uint16. A step has PARTS micro-batches of SEQUENCES x TOKENS,
// whose gradients add up, as its backward pass does. TESTING leaves out its own main().

#include "train_gpt2.c"

static double now_ms(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return 1e3 * moment.tv_sec + 1e-6 * moment.tv_nsec;
}

int main(int argc, char** argv) {
    if (argc != 7) {
        return 2;
    }
    int sequences = atoi(argv[3]), tokens = atoi(argv[4]), parts = atoi(argv[5]), steps = atoi(argv[6]);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    FILE* file = fopenCheck(argv[2], "rb");
    int count = sequences * tokens;
    unsigned short* ids = mallocCheck((count + 1) * sizeof(unsigned short));
    int* inputs = mallocCheck((count + 1) * sizeof(int));
    for (int step = 0; step < steps; step++) {
        double began = now_ms();
        float loss = 0.0f;
        gpt2_zero_grad(&model);
        for (int part = 0; part < parts; part++) {
            freadCheck(ids, sizeof(unsigned short), count + 1, file);
            for (int i = 0; i <= count; i++) {
                inputs[i] = ids[i];
            }
            gpt2_forward(&model, inputs, inputs + 1, sequences, tokens);
            gpt2_backward(&model);
            loss += model.mean_loss / parts;
        }
        gpt2_update(&model, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, step + 1);
        printf("iter %d: loss %.4f, time %.2fms\n", step, loss, now_ms() - began);
        fflush(stdout);
    }
    printf("{\"reserved\": 0}\n");
    return 0;
}
