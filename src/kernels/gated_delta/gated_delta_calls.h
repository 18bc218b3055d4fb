// The gated delta rule of a batch on a CPU. A task is a sequence and a key head, with its value heads: it computes the
// same bits whatever else is in the batch and whichever thread takes it. F is float (double in a test). No torch.
#pragma once

#include "gated_delta_chunk.h"

namespace lora_train::kernels::chunked {

/// The memory of this thread.
template <class F>
ChunkWork<F>& work_of(const GatedDeltaSizes& shape) {
  static thread_local ChunkWork<F> work;
  work.resize(shape.key_size, shape.value_size, shape.value_heads / shape.key_heads);
  return work;
}

template <class T>
struct Batch {
  GatedDeltaSizes shape;
  GatedDeltaRows<T> inputs;
  HostRanges sequences;
  std::int64_t chunk_tokens = kChunkTokens;

  std::int64_t num_tasks() const { return shape.key_heads * sequences.count; }
};

/// Task i: key head i / count, sequence i % count, so that threads share sequences of any lengths evenly.
template <class Machine, class F, class T>
struct Head {
  const Batch<T>& batch;
  const GatedDeltaSizes& shape;
  std::int64_t key_head, sequence, first, last, num_values;
  ChunkWork<F>& w;

  Head(const Batch<T>& of, std::int64_t task)
      : batch(of),
        shape(of.shape),
        key_head(task / of.sequences.count),
        sequence(task % of.sequences.count),
        first(of.sequences.cu[sequence]),
        last(of.sequences.cu[sequence + 1]),
        num_values(shape.value_heads / shape.key_heads),
        w(work_of<F>(shape)) {}

  std::int64_t value_head(std::int64_t r) const { return key_head * num_values + r; }
  std::int64_t state_size() const { return shape.key_size * shape.value_size; }
  Gates<F> gates(std::int64_t r) const {
    return {std::exp(F{batch.inputs.a_log[value_head(r)]}), F{batch.inputs.dt_bias[value_head(r)]}};
  }

  std::int64_t q_column() const { return key_head * shape.key_size; }
  std::int64_t k_column() const { return shape.key_width() + q_column(); }
  std::int64_t out_column(std::int64_t r) const { return value_head(r) * shape.value_size; }
  std::int64_t v_column(std::int64_t r) const { return 2 * shape.key_width() + out_column(r); }

  template <class Element>
  static Rows<Element> part(Rows<Element> rows, std::int64_t token, std::int64_t column) {
    return {rows[token] + column, rows.stride};
  }
  template <class Element>
  void load(Rows<const Element> from, std::int64_t rows, std::int64_t columns, Matrix<F>& to) const {
    Machine::template call<load_rows<F, Element>>(from, rows, columns, to);
  }
  template <class Element>
  void store(Matrix<F>& from, std::int64_t rows, std::int64_t columns, Rows<Element> to) const {
    Machine::template call<store_rows<F, Element>>(from, rows, columns, to);
  }

  void load_keys(std::int64_t token, std::int64_t num_tokens) const {
    w.start_chunk(num_tokens);
    load(part(batch.inputs.qkv, token, q_column()), num_tokens, w.dk, w.q);
    load(part(batch.inputs.qkv, token, k_column()), num_tokens, w.dk, w.k);
    Machine::template call<norm_keys<F>>(w);
  }
  void load_values(std::int64_t token, std::int64_t r) const {
    load(part(batch.inputs.qkv, token, v_column(r)), w.num_tokens, w.dv, w.v);
    for (std::int64_t i = 0; i < w.num_tokens; ++i) {
      w.a[i] = chunked::load(batch.inputs.a[token + i] + value_head(r));
      w.beta[i] = sigmoid_of(F{chunked::load(batch.inputs.b[token + i] + value_head(r))});
    }
  }
  void start_chunk(std::int64_t token) const {
    load_keys(token, std::min(batch.chunk_tokens, last - token));
    Machine::template call<multiply_keys<Machine, F>>(w);
  }
  void start_values(std::int64_t token, std::int64_t r) const {
    load_values(token, r);
    Machine::template call<decay_chunk<F>>(w, gates(r));
  }

  /// Takes the chunks that begin before `end` into the states. Calls found(token, r) when N of a chunk is known, and
  /// done(token, r) when its state is.
  template <class Found, class Done>
  void scan(std::int64_t end, const Found& found, const Done& done) const {
    for (std::int64_t token = first; token < end; token += batch.chunk_tokens) {
      start_chunk(token);
      for (std::int64_t r = 0; r < num_values; ++r) {
        start_values(token, r);
        Machine::template call<new_values<Machine, F>>(w, w.state(r));
        found(token, r);
        Machine::template call<advance<Machine, F>>(w, w.state(r));
        done(token, r);
      }
    }
  }
};

template <class F, class T>
struct ForwardCall : Batch<T> {
  F* state;
  Rows<T> out;

  template <class Machine>
  void run(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) {
      const Head<Machine, F, T> head(*this, i);
      const std::int64_t* const rows = this->sequences.state_rows;
      F* const states = rows == nullptr ? nullptr
                                        : state + (rows[head.sequence] * head.shape.value_heads + head.value_head(0)) *
                                                      head.state_size();
      if (head.last == head.first) continue;
      head.last - head.first == 1 && states != nullptr ? step_one(head, states) : scan(head, states);
    }
  }

 private:
  template <class Machine>
  void step_one(const Head<Machine, F, T>& head, F* states) const {
    ChunkWork<F>& w = head.w;
    head.load_keys(head.first, 1);
    for (std::int64_t r = 0; r < head.num_values; ++r) {
      head.load_values(head.first, r);
      Machine::template call<step<Machine, F>>(w, std::exp(head.gates(r).g(w.a[0])), states + r * head.state_size());
      head.store(w.o, 1, w.dv, head.part(out, head.first, head.out_column(r)));
    }
  }

  template <class Machine>
  void scan(const Head<Machine, F, T>& head, F* states) const {
    ChunkWork<F>& w = head.w;
    for (std::int64_t r = 0; r < head.num_values; ++r) {
      if (states == nullptr) {
        w.state(r).fill_zero();
      } else {
        head.load(Rows<const F>{states + r * head.state_size(), w.dv}, w.dk, w.dv, w.state(r));
      }
    }
    const auto write = [&](std::int64_t token, std::int64_t r) {
      Machine::template call<outputs<Machine, F>>(w, w.state(r));
      head.store(w.o, w.num_tokens, w.dv, head.part(out, token, head.out_column(r)));
    };
    head.scan(head.last, write, [](std::int64_t, std::int64_t) {});
    for (std::int64_t r = 0; states != nullptr && r < head.num_values; ++r) {
      head.store(w.state(r), w.dk, w.dv, Rows<F>{states + r * head.state_size(), w.dv});
    }
  }
};

/// Two scans of a sequence: forward for the states, backward for the gradients. The states of all chunks but the first
/// are kept in scratch: [slots, Hv, dk, dv]. Sequences of n tokens have ceil(n / C) - 1 <= (n - 1) / C of them, so all
/// together have at most floor(N / C) slots.
template <class F, class T>
struct BackwardCall : Batch<T> {
  Rows<const T> d_out;
  F* scratch;
  GatedDeltaGradientRows<T> gradients;
  double* sums;  ///< [sequences, Hv, 2], overwritten: gradients of A_log and dt_bias

  template <class Machine>
  void run(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) {
      const Head<Machine, F, T> head(*this, i);
      double* const sums_of_head = sums + 2 * (head.sequence * head.shape.value_heads + head.value_head(0));
      std::fill(sums_of_head, sums_of_head + 2 * head.num_values, 0.0);
      run_head(head, sums_of_head);
    }
  }

 private:
  std::int64_t slots_before(std::int64_t s) const {
    std::int64_t slots = 0;
    for (std::int64_t i = 0; i < s; ++i) {
      const std::int64_t n = this->sequences.cu[i + 1] - this->sequences.cu[i];
      slots += n == 0 ? 0 : (n - 1) / this->chunk_tokens;
    }
    return slots;
  }

  template <class Machine>
  void run_head(const Head<Machine, F, T>& head, double* sums_of_head) const {
    ChunkWork<F>& w = head.w;
    const std::int64_t chunk_tokens = this->chunk_tokens, num_tokens = head.last - head.first;
    const std::int64_t first_slot = slots_before(head.sequence);
    // Of the chunk that begins with `token`, not the first one.
    const auto kept = [&](std::int64_t token, std::int64_t r) {
      const std::int64_t slot = first_slot + (token - head.first) / chunk_tokens - 1;
      return scratch + (slot * head.shape.value_heads + head.value_head(r)) * head.state_size();
    };
    for (Matrix<F>& state : w.states) state.fill_zero();
    const auto keep = [&](std::int64_t token, std::int64_t r) {
      head.store(w.state(r), w.dk, w.dv, Rows<F>{kept(token + chunk_tokens, r), w.dv});
    };
    head.scan(
        head.last - chunk_tokens, [](std::int64_t, std::int64_t) {}, keep);
    for (Matrix<F>& end : w.states) end.fill_zero();
    for (std::int64_t chunk = (num_tokens + chunk_tokens - 1) / chunk_tokens - 1; chunk >= 0; --chunk) {
      const std::int64_t token = head.first + chunk * chunk_tokens;
      head.start_chunk(token);
      w.dq.fill_zero();
      w.dk_sum.fill_zero();
      for (std::int64_t r = 0; r < head.num_values; ++r) {
        head.start_values(token, r);
        head.load(head.part(d_out, token, head.out_column(r)), w.num_tokens, w.dv, w.o);
        if (chunk == 0) {
          w.start.fill_zero();
        } else {
          head.load(Rows<const F>{kept(token, r), w.dv}, w.dk, w.dv, w.start);
        }
        Machine::template call<backward_of_values<Machine, F>>(w, w.start, w.state(r));
        head.store(w.v, w.num_tokens, w.dv, head.part(gradients.qkv, token, head.v_column(r)));
        store_gates(head, token, r, sums_of_head + 2 * r);
      }
      Machine::template call<norm_keys_backward<F>>(w);
      head.store(w.dq, w.num_tokens, w.dk, head.part(gradients.qkv, token, head.q_column()));
      head.store(w.dk_sum, w.num_tokens, w.dk, head.part(gradients.qkv, token, head.k_column()));
    }
  }

  template <class Machine>
  void store_gates(const Head<Machine, F, T>& head, std::int64_t token, std::int64_t r, double* sums_of_value) const {
    const ChunkWork<F>& w = head.w;
    const Gates<F> gates = head.gates(r);
    double dg = 0;
    for (std::int64_t i = w.num_tokens - 1; i >= 0; --i) {
      dg += w.dG[i];
      const F da = static_cast<F>(dg) * gates.g_slope(w.a[i]);
      sums_of_value[0] += dg * static_cast<double>(w.g[i]);
      sums_of_value[1] += static_cast<double>(da);
      store(gradients.a[token + i] + head.value_head(r), da);
      store(gradients.b[token + i] + head.value_head(r), w.dbeta[i] * w.beta[i] * (1 - w.beta[i]));
    }
  }
};

}  // namespace lora_train::kernels::chunked
